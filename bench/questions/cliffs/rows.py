"""The rows: what each loads, what it does with its loaders, and what is measured of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec

from bench.loads import wholes as loads
from bench.loads.wholes import MB, Load
from bench.questions.cliffs import rule, uses


@dataclass(frozen=True)
class Program:
    """
    One program, small enough for a few seconds.

    Args:
        load: Makes the dataset.
        use: What an epoch is.
        loaders: How many of the loader are open at once.
        epochs: Timed ones after a first one that is not; 0 times the first epoch.
        persistent: Workers outlive the epoch.
        gives_back: After an epoch it needs little, and must not hold what the epoch needed.
        most_time: What of torch's time it may take.
        options: Arguments of the loader.
    """

    load: Callable[[], Load]
    use: uses.Use = uses.stream
    loaders: int = 1
    epochs: int = 2
    persistent: bool = True
    gives_back: bool = False
    most_time: float = rule.MOST_TIME
    options: dict = field(default_factory=dict)


def rows() -> dict[str, Program]:
    """List every program by its name, in the order of the table."""
    made = (_leaves(), _samples(), _objects(), _views(), _pages(), _pipelines(), _habits())
    return {name: program for part in made for name, program in part.items()}


def _leaves() -> dict[str, Program]:
    """Batches of which torch copies or pickles something once; kept, in an epoch of their own."""
    megabyte, text = bytes(range(250)) * 4_000, "shared " * 3_000
    made = {
        "columns of (16384, 500)": partial(loads.columns, 10, 16_384, 500),
        "columns of (65536, 64)": partial(loads.columns, 20, 65_536, 64),
        "one vocabulary": partial(loads.vocabulary, 40),
        "same bytes": partial(loads.same, 40, megabyte, 64),
        "same str": partial(loads.same, 60, text, 512),
        "class names": partial(loads.class_names, 60),
        "dict keys": partial(loads.literal_keys, 60),
        "object array": partial(loads.object_array, 20),
        "slices of shared data": partial(loads.shared_slices, 20, 100 * MB),
        "200 small tensors": partial(loads.many_tensors, 20, 200),
        "2,000 small arrays": partial(loads.many_arrays, 40, 2_000),
        "nested dicts": partial(loads.nested_dicts, 60),
    }
    kept = ("one vocabulary", "same str", "class names", "dict keys")
    return {
        **{name: Program(load) for name, load in made.items()},
        **{f"{name}, kept": Program(made[name], list, epochs=1) for name in kept},
    }


def _samples() -> dict[str, Program]:
    """Samples that torch's collate function puts together."""
    return {
        f"batches of {kind}": Program(partial(loads.collated, 60, kind)) for kind in loads.SAMPLES
    }


def _objects() -> dict[str, Program]:
    """Python objects, which torch pickles all at once: no more than what this adds."""
    small = ("datetimes", "decimals", "sets", "structured arrays")
    made = {
        f"{size} {kind}": partial(loads.objects, count, kind, size)
        for size, count, kinds in ((3_000, 40, loads.OBJECTS), (256, 200, small))
        for kind in kinds
    }
    made["dataclasses beside a tensor"] = partial(loads.beside_a_tensor, 40, 3_000)
    return {name: Program(load, most_time=rule.OF_OBJECTS, epochs=4) for name, load in made.items()}


def _views() -> dict[str, Program]:
    """Small parts of something large, of which torch moves the whole once, or the part alone."""
    made = {kind: partial(loads.views, 40, kind, 50_000) for kind in loads.VIEWS}
    if find_spec("polars"):
        made["rows of a frame of polars"] = partial(loads.frame_rows, 40, 500_000)
    return {name: Program(load, most_time=rule.OF_OBJECTS) for name, load in made.items()}


def _pages() -> dict[str, Program]:
    """First epochs, in which every slot is new; and programs that need much memory only once."""
    first, once = {"epochs": 0}, {"epochs": 1, "persistent": False}
    blocks = loads.blocks
    return {
        "first epoch of huge batches": Program(partial(blocks, 6, lambda _: 256 * MB), **first),
        "first 20 batches of 8 workers": Program(
            partial(loads.records, 250), partial(uses.steps, count=20, step_s=0.05),
            options={"num_workers": 8}, **first,
        ),
        "labels kept, first epoch": Program(partial(loads.images, 20), uses.keep_labels, **first),
        "sizes at random": Program(
            partial(blocks, 40, loads.at_random(125 * MB)), gives_back=True, **once
        ),
        "one of 300 MB among small ones": Program(
            partial(blocks, 30, loads.now_and_then(300 * MB, MB, 30)), gives_back=True, **once
        ),
        "zip of one loader three times": Program(
            partial(blocks, 12, lambda _: 20 * MB), uses.three_at_once, **once
        ),
        "train and val, persistent": Program(
            partial(blocks, 12, lambda _: 40 * MB), loaders=2, epochs=1
        ),
    }  # fmt: skip


def _pipelines() -> dict[str, Program]:
    """Batches that wait in the trainer, children that inherit one, and eight workers."""
    load = partial(loads.images, 40, 8 * MB)
    return {
        "thread with Queue(3)": Program(load, partial(uses.background, depth=3)),
        "thread with Queue(8)": Program(load, partial(uses.background, depth=8)),
        "look-ahead of 5": Program(load, partial(uses.look_ahead, depth=5, step_s=uses.STEP_S)),
        "children forked with a batch": Program(load, uses.fork_children),
        "8 workers": Program(partial(loads.images, 24), epochs=1, options={"num_workers": 8}),
    }


def _habits() -> dict[str, Program]:
    """Habits of keeping batches: what a training loop holds while the loader goes on."""
    return {
        f"{name} {habit}": Program(partial(loads.of_workload, name, count), use)
        for name, count in (("cifar", 100), ("imagenet", 14))
        for habit, use in uses.HABITS.items()
    }

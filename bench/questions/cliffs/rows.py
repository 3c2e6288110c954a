"""The rows: what each loads, what it does with its loaders, and what is measured of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec

from bench.loads import objects, views
from bench.loads import wholes as loads
from bench.loads.wholes import MB, Load
from bench.questions.cliffs import rule, uses


@dataclass(frozen=True)
class Program:
    """
    One program, small enough for a few seconds.

    Args:
        name: What the command line calls it.
        load: Makes the dataset.
        use: What an epoch is.
        loaders: How many of the loader are open at once.
        epochs: Timed ones after a first one that is not; 0 times the first epoch.
        persistent: Workers outlive the epoch.
        gives_back: After an epoch it needs little, and must not hold what the epoch needed.
        most_time: What of torch's time it may take.
        resident: Memory is the sum of what ps shows, which counts shared pages in each process.
        options: Arguments of the loader.
        large: The program in its whole size, for `--full` and for control groups.
    """

    name: str
    load: Callable[[], Load]
    use: uses.Use = uses.stream
    loaders: int = 1
    epochs: int = 2
    persistent: bool = True
    gives_back: bool = False
    most_time: float = rule.MOST_TIME
    resident: bool = False
    options: dict = field(default_factory=dict)
    large: Callable[[], Load] | None = None


_IN_SMALL_BATCHES = ("datetimes", "decimals", "sets", "structured arrays")


def rows() -> dict[str, Program]:
    """List every program by its name, in the order of the table."""
    of_batches = [*_leaves(), *_objects(), *_views(), *_first_pages()]
    of_programs = [*_memory(), *_pipelines(), *_many_workers(), *_habits()]
    return {row.name: row for row in [*of_batches, *of_programs]}


def _leaves() -> list[Program]:
    """Batches of which torch copies or pickles something once."""
    megabyte, text = bytes(range(250)) * 4_000, "shared " * 3_000
    keep = uses.habit("keep_all")
    return [
        Program("columns of (16384, 500)", partial(loads.columns, 10, 16_384, 500)),
        Program("columns of (65536, 64)", partial(loads.columns, 20, 65_536, 64)),
        Program("one vocabulary", partial(loads.vocabulary, 40)),
        Program("one vocabulary, kept", partial(loads.vocabulary, 40), keep, epochs=1),
        Program("same bytes", partial(loads.same, 40, megabyte, 64)),
        Program("same str", partial(loads.same, 60, text, 512)),
        Program("same str, kept", partial(loads.same, 60, text, 512), keep, epochs=1),
        Program("class names", partial(loads.class_names, 60)),
        Program("class names, kept", partial(loads.class_names, 60), keep, epochs=1),
        Program("dict keys", partial(loads.literal_keys, 60)),
        Program("dict keys, kept", partial(loads.literal_keys, 60), keep, epochs=1),
        Program("object array", partial(loads.object_array, 20)),
        Program("slices of shared data", partial(loads.shared_slices, 20, 100 * MB)),
        Program("200 small tensors", partial(loads.many_tensors, 20, 200)),
        Program("2,000 small arrays", partial(loads.many_arrays, 40, 2_000)),
        Program("nested dicts", partial(loads.nested_dicts, 60)),
    ]


def _objects() -> list[Program]:
    """Python objects, which torch pickles all at once: no more than what this adds."""
    found = {
        f"{size} {kind}": partial(objects.of_kind, count, kind, size)
        for size, count, kinds in ((3_000, 40, objects.KINDS), (256, 200, _IN_SMALL_BATCHES))
        for kind in kinds
    }
    found["dataclasses beside a tensor"] = partial(objects.beside_a_tensor, 40, 3_000)
    return [
        Program(name, load, most_time=rule.OF_OBJECTS, epochs=4) for name, load in found.items()
    ]


def _views() -> list[Program]:
    """Small parts of something large, of which torch moves the whole once, or the part alone."""
    of_table = [
        Program(kind, partial(views.of_table, 40, kind, 50_000), most_time=rule.OF_OBJECTS)
        for kind in views.KINDS
    ]
    if find_spec("polars") is None:
        return of_table
    load = partial(views.frame_rows, 40, 500_000)
    return [*of_table, Program("rows of a frame of polars", load, most_time=rule.OF_OBJECTS)]


def _first_pages() -> list[Program]:
    """Epochs in which every slot is new."""
    return [
        Program(
            "first epoch of huge batches",
            partial(loads.blocks, 6, lambda _: 256 * MB),
            epochs=0,
            large=partial(loads.blocks, 10, lambda _: 1_000 * MB),
        ),
        Program(
            "first 20 batches of 8 workers",
            partial(loads.records, 250),
            uses.steps(20, 0.05),
            epochs=0,
            options={"num_workers": 8},
            large=partial(loads.records, 1_000),
        ),
        Program(
            "labels kept, first epoch",
            partial(loads.images, 20),
            uses.habit("keep_labels"),
            epochs=0,
        ),
    ]


def _memory() -> list[Program]:
    """Programs that need much memory once, and little before and after."""
    return [
        Program(
            "sizes at random",
            partial(loads.blocks, 40, loads.at_random(125 * MB)),
            epochs=1,
            persistent=False,
            gives_back=True,
            large=partial(loads.blocks, 40, loads.at_random(500 * MB)),
        ),
        Program(
            "one of 300 MB among small ones",
            partial(loads.blocks, 30, loads.now_and_then(300 * MB, MB, 30)),
            epochs=1,
            persistent=False,
            gives_back=True,
        ),
        Program(
            "zip of one loader three times",
            partial(loads.blocks, 12, lambda _: 20 * MB),
            uses.three_at_once,
            epochs=1,
            persistent=False,
        ),
        Program(
            "train and val, persistent",
            partial(loads.blocks, 12, lambda _: 40 * MB),
            loaders=2,
            epochs=1,
            large=partial(loads.blocks, 12, lambda _: 100 * MB),
        ),
    ]


def _pipelines() -> list[Program]:
    """Batches that wait in the trainer, and children that inherit one."""
    load = partial(loads.images, 40, 8 * MB)
    return [
        Program("thread with Queue(3)", load, uses.background(3)),
        Program("thread with Queue(8)", load, uses.background(8)),
        Program("look-ahead of 5", load, uses.look_ahead(5)),
        Program("children forked with a batch", load, uses.fork_children),
    ]


def _many_workers() -> list[Program]:
    """Eight workers, and their memory in two sums."""
    load, options = partial(loads.images, 24), {"num_workers": 8}
    return [
        Program("8 workers", load, epochs=1, options=options),
        Program("8 workers, sum of RSS", load, epochs=1, options=options, resident=True),
    ]


def _habits() -> list[Program]:
    """Habits of keeping batches: what a training loop holds while the loader goes on."""
    return [
        Program(f"{name} {habit}", partial(loads.of_workload, name, count), uses.habit(habit))
        for name, count in (("cifar", 100), ("imagenet", 14))
        for habit in uses.HABITS
    ]

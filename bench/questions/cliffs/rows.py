"""The rows: what each loads, what it does with its loaders, and what is measured of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from bench.questions.cliffs import loads, uses
from bench.questions.cliffs.loads import MB, Load
from bench.questions.habits import HABITS


@dataclass(frozen=True)
class Row:
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
    resident: bool = False
    options: dict = field(default_factory=dict)
    large: Callable[[], Load] | None = None


def rows() -> dict[str, Row]:
    """Every row by its name, in the order of the table."""
    found = [*_leaves(), *_first_pages(), *_memory(), *_pipelines(), *_many_workers(), *_habits()]
    return {row.name: row for row in found}


def _leaves() -> list[Row]:
    """Batches of which torch copies or pickles something once."""
    megabyte, text = bytes(range(250)) * 4_000, "shared " * 3_000
    keep = uses.habit("keep_all")
    return [
        Row("columns of (16384, 500)", partial(loads.columns, 10, 16_384, 500)),
        Row("columns of (65536, 64)", partial(loads.columns, 20, 65_536, 64)),
        Row("one vocabulary", partial(loads.vocabulary, 40)),
        Row("one vocabulary, kept", partial(loads.vocabulary, 40), keep, epochs=1),
        Row("same bytes", partial(loads.same, 40, megabyte, 64)),
        Row("same str", partial(loads.same, 60, text, 512)),
        Row("same str, kept", partial(loads.same, 60, text, 512), keep, epochs=1),
        Row("class names", partial(loads.class_names, 60)),
        Row("class names, kept", partial(loads.class_names, 60), keep, epochs=1),
        Row("dict keys", partial(loads.literal_keys, 60)),
        Row("dict keys, kept", partial(loads.literal_keys, 60), keep, epochs=1),
        Row("object array", partial(loads.object_array, 20)),
        Row("slices of shared data", partial(loads.shared_slices, 20, 100 * MB)),
        Row("200 small tensors", partial(loads.many_tensors, 20, 200)),
        Row("2,000 small arrays", partial(loads.many_arrays, 40, 2_000)),
        Row("nested dicts", partial(loads.nested_dicts, 60)),
    ]


def _first_pages() -> list[Row]:
    """Epochs in which every slot is new."""
    return [
        Row(
            "first epoch of huge batches",
            partial(loads.blocks, 6, lambda _: 256 * MB),
            epochs=0,
            large=partial(loads.blocks, 10, lambda _: 1_000 * MB),
        ),
        Row(
            "first 20 batches of 8 workers",
            partial(loads.records, 250),
            uses.steps(20, 0.05),
            epochs=0,
            options={"num_workers": 8},
            large=partial(loads.records, 1_000),
        ),
        Row(
            "labels kept, first epoch",
            partial(loads.images, 20),
            uses.habit("keep_labels"),
            epochs=0,
        ),
    ]


def _memory() -> list[Row]:
    """Programs that need much memory once, and little before and after."""
    return [
        Row(
            "sizes at random",
            partial(loads.blocks, 40, loads.at_random(125 * MB)),
            epochs=1,
            persistent=False,
            gives_back=True,
            large=partial(loads.blocks, 40, loads.at_random(500 * MB)),
        ),
        Row(
            "one of 300 MB among small ones",
            partial(loads.blocks, 30, loads.now_and_then(300 * MB, MB, 30)),
            epochs=1,
            persistent=False,
            gives_back=True,
        ),
        Row(
            "zip of one loader three times",
            partial(loads.blocks, 12, lambda _: 20 * MB),
            uses.three_at_once,
            epochs=1,
            persistent=False,
        ),
        Row(
            "train and val, persistent",
            partial(loads.blocks, 12, lambda _: 40 * MB),
            loaders=2,
            epochs=1,
            large=partial(loads.blocks, 12, lambda _: 100 * MB),
        ),
    ]


def _pipelines() -> list[Row]:
    """Batches that wait in the trainer, and children that inherit one."""
    load = partial(loads.images, 40, 8 * MB)
    return [
        Row("thread with Queue(3)", load, uses.background(3)),
        Row("thread with Queue(8)", load, uses.background(8)),
        Row("look-ahead of 5", load, uses.look_ahead(5)),
        Row("children forked with a batch", load, uses.fork_children),
    ]


def _many_workers() -> list[Row]:
    """Eight workers, and their memory in two sums."""
    load, options = partial(loads.images, 24), {"num_workers": 8}
    return [
        Row("8 workers", load, epochs=1, options=options),
        Row("8 workers, sum of RSS", load, epochs=1, options=options, resident=True),
    ]


def _habits() -> list[Row]:
    """The rows of `bench retention`."""
    return [
        Row(f"{name} {habit}", partial(loads.of_workload, name, count), uses.habit(habit))
        for name, count in (("cifar", 100), ("imagenet", 14))
        for habit in HABITS
    ]

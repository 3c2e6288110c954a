"""
Which options go together: one table of rules, and one of what each option needs.

What is refused, what is left out where options are for all loaders, and what may be advised come
from the table of rules, by trying options against it. docs/api.md shows it, and a test compares.

Most rules are about workers, so a loader without any may have all options; but without workers too
batches go to a device.
"""

import multiprocessing
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from torch.utils.data import MapDataPipe
from torch.utils.data.dataloader import _DatasetKind

from shmloader.errors import UnusedOptionWarning, warn, warn_once
from shmloader.options.options import BY_BATCH, OPTIONS, Options, replaces
from shmloader.processes import starting
from shmloader.stats.setting import DYNAMIC
from shmloader.worker.snapshot import is_stateful


class _Need(NamedTuple):
    """What an option needs to do anything, and what to say if a loader lacks it."""

    is_met: Callable[[Any], bool]
    remedy: str


_WORKERS = _Need(
    lambda loader: loader.num_workers > 0,
    "with num_workers=0 there are no workers: pass at least 1",
)
_STARTED = _Need(
    lambda loader: starting.method_of(loader.multiprocessing_context or multiprocessing) != "fork",
    'forked workers have the modules of the training process: it is for "spawn" and "forkserver"',
)
_FINDS = _Need(
    lambda loader: getattr(loader, "max_workers", None) is not None,
    'it bounds what num_workers="auto" finds: pass that',
)
# Each option with its needs: workers, unless its row differs. One that lacks a need does nothing,
# and every batch is the same.
NEEDS: dict[str, tuple[_Need, ...]] = {
    **dict.fromkeys(OPTIONS, (_WORKERS,)),
    "seed_by": (),
    "device": (),
    "preload": (_WORKERS, _STARTED),
    "min_workers": (_WORKERS, _FINDS),
}


class Fact(NamedTuple):
    """What may be true of a loader or its options, and how docs/api.md calls it."""

    words: str
    is_true: Callable[[Any, Options], bool]


class Rule(NamedTuple):
    """Options that are refused if they are given together while a fact is true."""

    options: tuple[str, ...]  # the first is left out if they are for all loaders of a process
    fact: Fact
    words: str  # after them in the error; {dataset} is the class of the dataset

    def is_broken(self, loader: Any, options: Options) -> bool:
        """Returns True if a loader may not have these options together."""
        given = all(getattr(options, name) != getattr(Options, name) for name in self.options)
        return given and self.fact.is_true(loader, options)


_PINNED = Fact("`pin_memory=True`", lambda loader, options: bool(loader.pin_memory))
_BY_WORKER = Fact('`seed_by="worker"`', lambda loader, options: options.seed_by != BY_BATCH)
_ITERABLE = Fact("an iterable dataset", lambda loader, options: is_iterable(loader))
_PIPES = Fact("a data pipe", lambda loader, options: isinstance(loader.dataset, MapDataPipe))
_SAVED = Fact("a dataset with `state_dict()`", lambda loader, options: is_stateful(loader.dataset))

# Each table is named by what it takes for its rules to hold.
_WITHOUT_WORKERS_TOO = (
    Rule(
        ("device",),
        _PINNED,
        "and pin_memory=True both deliver to the device: omit pin_memory, because with device= "
        "batches arrive on the device, where nothing is pinned",
    ),
)
_UNREPEATABLE = (
    'needs seed_by="batch": threads draw random numbers in no certain order, so a replacement or '
    "a resumed run could not repeat a worker's random numbers"
)
_OF_AUTO = ("min_workers", "seed_by")  # what goes with max_workers
_GO_ON = ("resumable", "restarts", "worker_bytes")  # have other processes go on with a dataset
_WHATEVER_THE_DATASET = (
    *(Rule(("fetch_threads", name), _BY_WORKER, _UNREPEATABLE) for name in _GO_ON),
)
_FOR_MAPS = ("assignment", "fetch_threads", "worker_bytes")
_NO_REQUESTS = (
    "is for map-style datasets, whose requests name their samples, but {dataset} is iterable-style"
)
_NO_STATE = (
    "cannot save the state of a dataset, but {dataset} has state_dict(): threads prefetch "
    "samples, so its state would include those; omit one of the two options"
)
_WITH_WORKERS = (
    *(Rule((name,), _ITERABLE, f"{_NO_REQUESTS}: omit it") for name in _FOR_MAPS),
    Rule(("max_workers",), _ITERABLE, f"{_NO_REQUESTS}: give num_workers as a number"),
    *(Rule(("fetch_threads", name), _SAVED, _NO_STATE) for name in _GO_ON),
    Rule(
        ("max_workers",),
        _SAVED,
        "adds workers that begin with the dataset as it was at iter(), but {dataset} has "
        "state_dict(): each worker's state would be lost with it; give num_workers as a number",
    ),
    Rule(
        ("max_workers",),
        _PIPES,
        "adds and removes workers, but {dataset} is a data pipe, which divides its samples among "
        "a fixed number: give num_workers as a number",
    ),
)
RULES = (*_WITHOUT_WORKERS_TOO, *_WHATEVER_THE_DATASET, *_WITH_WORKERS)


def check(loader: Any, options: Options) -> None:
    """Refuse options that cannot all be kept, of a loader whose attributes are set."""
    _refuse(loader, options, RULES if loader.num_workers > 0 else _WITHOUT_WORKERS_TOO)


def check_alone(options: Options) -> None:
    """Refuse options that cannot all be kept, whatever the dataset."""
    _refuse(None, options, _WHATEVER_THE_DATASET)


def _refuse(loader: Any, options: Options, rules: Iterable[Rule]) -> None:
    for rule in rules:
        if rule.is_broken(loader, options):
            given = " with ".join(_as_given(name, options) for name in rule.options)
            dataset = type(getattr(loader, "dataset", None)).__name__
            raise ValueError(f"{given} {rule.words.format(dataset=dataset)}")


def _as_given(name: str, options: Options) -> str:
    if name == "max_workers":
        return 'num_workers="auto"'  # which nearly always is what was written
    return f"{name}={getattr(options, name)!r}"


def advise(loader: Any, options: Options) -> None:
    """Warn of what does nothing here, or is less exact than a user may expect."""
    for remedy, names in _unused(loader, options).items():
        given = ", ".join(f"{name}={getattr(options, name)!r}" for name in names)
        warn(f"without effect: {given}; {remedy}, or omit the option", UnusedOptionWarning)
    is_dynamic = options.assignment == DYNAMIC and options.seed_by != BY_BATCH
    again = "a resumed run" if options.resumable else ""
    if replaces(options):
        again = "a restart"
    if loader.num_workers > 0 and is_dynamic and again:
        warn(
            'with assignment="dynamic" and seed_by="worker" the random numbers of a batch depend '
            f"on which worker happens to be free, so {again} repeats the batches and their order, "
            'but not the random numbers: pass seed_by="batch" for the same random numbers in '
            "every run"
        )


def _unused(loader: Any, options: Options) -> dict[str, list[str]]:
    """List the given options that do nothing, by what would change that."""
    found: dict[str, list[str]] = {}
    for name, needs in NEEDS.items():
        lacks = [need.remedy for need in needs if not need.is_met(loader)]
        if lacks and getattr(options, name) != getattr(Options, name):
            found.setdefault(lacks[0], []).append(name)
    return found


def fitting(loader: Any, options: Options) -> Options:
    """Leave out what a loader cannot have, where options are for all loaders of a process."""
    for rule in RULES:
        if rule.is_broken(loader, options):
            options = _without(rule.options[0], options)
    return options


def _without(name: str, options: Options) -> Options:
    others = _OF_AUTO if name == "max_workers" else ()
    return replace(options, **{each: getattr(Options, each) for each in (name, *others)})


def say_once_of_workers(loader: Any, options: Options) -> None:
    """Say what becomes of a loader that was given a number, where "auto" is for all loaders."""
    if not options.is_auto:
        return
    for rule in RULES:
        if rule.options == ("max_workers",) and rule.is_broken(loader, options):
            warn_once(
                f'num_workers={loader.num_workers} stays: num_workers="auto" '
                + rule.words.format(dataset=type(loader.dataset).__name__)
            )
            return
    assert options.max_workers is not None, "it has a default"
    warn_once(
        'with num_workers="auto" random numbers in workers depend on the batch, as with '
        'seed_by="batch", so they differ from those of torch\'s own loader. Worker ids go up to '
        f"{options.max_workers - 1}, and get_worker_info().num_workers is {options.max_workers}"
    )


def is_iterable(loader: Any) -> bool:
    """Returns True if a loader's dataset is iterable-style."""
    return bool(loader._dataset_kind == _DatasetKind.Iterable)


def may_be_dynamic(loader: Any, options: Options) -> bool:
    """Returns True if the assignment of a loader may be "dynamic", with its other options."""
    return _accepts(loader, replace(options, assignment="dynamic"))


def may_have_threads(loader: Any, options: Options) -> bool:
    """Returns True if a loader has no fetching threads and may, with its other options."""
    return not options.fetch_threads and _accepts(loader, replace(options, fetch_threads=1))


def _accepts(loader: Any, options: Options) -> bool:
    try:
        check(loader, options)
    except ValueError:
        return False
    return True

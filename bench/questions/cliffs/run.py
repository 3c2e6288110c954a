"""
One program with one loader: its time, or its memory and a checksum of every batch.

command.py forks a process for each run, which takes less time than a new interpreter, and watch.py
looks at its memory from outside; in a control group driver.py calls `run`.
"""

import gc
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from statistics import median

from bench.batches import touch
from bench.loaders import opened
from bench.questions.cliffs.digest import digest
from bench.questions.cliffs.rows import Program, rows
from bench.questions.cliffs.watch import DURING

_WORKERS = 2
_ENOUGH_S = 5  # a first epoch that takes longer is not repeated
_LOOKS = 6  # how often an epoch is stopped for a look at memory
_UNKNOWN = 3  # batches between looks in a first epoch, whose length is not known
_TOUCHED = 64  # leaves of a batch that are touched


class Seen:
    """A loader whose batches are shown to a function on their way."""

    def __init__(self, loader, see: Callable[[object], None]):
        self._loader, self._see = loader, see

    def __iter__(self) -> Iterator:
        for batch in self._loader:
            self._see(batch)
            yield batch


def run(name: str, loader: str) -> dict:
    """Run a program once in its whole size, checked; one that is killed returns nothing."""
    program = rows()[name]
    return weighed(program, program.large or program.load, loader, lambda _: None)


def timed(program: Program, load: Callable, loader: str) -> dict:
    """
    Time epochs of a program from iter() to the end; what is kept is dropped off the clock.

    The first epoch counts only if it is the only one, as when it takes so long that it is enough.
    """
    counted = 0

    def see(batch: object) -> None:
        nonlocal counted
        counted += 1
        _touch(batch)

    found: list[float] = []
    with _opened(program, load, loader, see) as loaders:
        first_s = 0.0
        for _ in range(program.epochs + 1):
            counted, begin = 0, time.perf_counter()
            kept = program.use(*loaders)
            seconds = time.perf_counter() - begin
            del kept
            found.append(seconds / counted)
            first_s = first_s or seconds
            if first_s > _ENOUGH_S:
                break
    return {"ms": median(found[1:] or found) * 1e3}


def weighed(program: Program, load: Callable, loader: str, look: Callable[[str], None]) -> dict:
    """
    Run one epoch, and another one, in which memory is looked at and every batch is checked.

    Args:
        look: Called with "before" when the dataset is there and the loaders are not; with DURING
            when the epoch begins, every now and then, for the largest batch so far, and when the
            epoch is over and what it keeps is there; and with "after" when that is dropped.
            Workers run ahead meanwhile.
    """
    checksum, turn, every, heaviest = 0, 0, _UNKNOWN, 0

    def see(batch: object) -> None:
        nonlocal checksum, turn, heaviest
        turn += 1
        if not every:  # the first epoch is for the second one's slots and lengths
            return
        checksum = checksum * 31 + digest(batch) & 0xFFFFFFFF  # in their order
        size = getattr(batch, "nbytes", 0)  # only of one tensor: only of these do sizes differ
        heavier, heaviest = size > heaviest, max(heaviest, size)
        del batch
        if turn % every == 0 or heavier:
            look(DURING)

    with _opened(program, load, loader, see, look) as loaders:
        if program.epochs:
            every = 0
            kept = program.use(*loaders)
            del kept
            every, turn = max(1, turn // _LOOKS), 0
        look(DURING)
        kept = program.use(*loaders)
        look(DURING)
        del kept
        gc.collect()
        look("after")
        return {"checksum": checksum, "batches": turn}


@contextmanager
def _opened(
    program: Program,
    load: Callable,
    loader: str,
    see: Callable[[object], None],
    look: Callable[[str], None] = lambda _: None,
) -> Iterator[list[Seen]]:
    """Open the loaders of a program; memory may be looked at when only the dataset is there."""
    warnings.simplefilter("ignore")  # more workers than cores, and advice about what is kept
    dataset, given = load()
    look("before")
    arguments = {"num_workers": _WORKERS, "persistent_workers": program.persistent}
    arguments |= given | program.options
    with ExitStack() as stack:
        yield [
            Seen(stack.enter_context(opened(loader, dataset, **arguments)), see)
            for _ in range(program.loaders)
        ]


def _touch(batch: object) -> None:
    """Read a few elements of a few leaves; walking through all of many would hide what is asked."""
    parts = batch.values() if isinstance(batch, dict) else batch
    parts = islice(parts, _TOUCHED) if isinstance(batch, (list, tuple, dict)) else [batch]
    touch([part for part in parts if hasattr(part, "nbytes")] or [0])

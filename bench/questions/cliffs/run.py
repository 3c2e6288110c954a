"""
One program with one loader: its time, or its memory and a checksum of every batch.

Each run is a process that is forked, which takes a hundredth of the time of a new interpreter that
imports torch. What it shares with this one counts once, because this one is counted too, in every
look alike.
"""

import gc
import multiprocessing
import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from statistics import median
from typing import Any

from bench.batches import digest, touch
from bench.loaders import opened
from bench.loads.wholes import Load
from bench.questions.cliffs.rows import Program
from bench.usage import all_mb, process_ids

_WORKERS = 2
_ENOUGH_S = 5  # a first epoch that takes longer is not repeated
_LOOKS = 12  # how often an epoch stops for a look at memory
_UNKNOWN = 3  # batches between looks in a first epoch, whose length is not known
_TOUCHED = 64  # leaves of a batch that are touched
_LONGEST_S = 300
_FORK = multiprocessing.get_context("fork")

See = Callable[[Any], object]


def forked(work: Callable[[], dict]) -> dict:
    """Fork a process for some work. Returns what that returns, or its mistake."""
    gc.collect()
    gc.freeze()  # a collection in the child would copy every page
    here, there = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_work, args=(work, there))
    process.start()
    there.close()
    try:
        return here.recv() if here.poll(_LONGEST_S) else {"mistake": "it hangs"}
    except EOFError:
        return {"mistake": "the process was killed"}
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its session, with the workers
        process.kill()
        process.join()


def _work(work: Callable[[], dict], pipe: Any) -> None:
    """Do the work in the child and leave without what the parent would do at its end."""
    os.setsid()  # so that its workers can be found and ended when it is gone
    try:
        pipe.send(work())
    except BaseException:  # whatever it is, it belongs into the record
        pipe.send({"mistake": traceback.format_exc(limit=-3)})
    finally:
        os._exit(0)


def timed(program: Program, loader: str) -> dict:
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
    with _opened(program, program.load(), loader, see) as loaders:
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


def weighed(program: Program, loader: str) -> dict:
    """
    Run one epoch, and another one, in which memory is looked at and every batch is checked.

    Returns:
        The MB before there are loaders; the most of some looks in the epoch, of the largest batch
        so far, and of what is kept at the end; and when that is dropped. And a checksum.
    """
    checksum, turn, every, heaviest, most = 0, 0, _UNKNOWN, 0, 0.0

    def look() -> None:
        nonlocal most
        most = max(most, _mb())

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
            look()

    load = program.load()
    before = _mb()
    with _opened(program, load, loader, see) as loaders:
        if program.epochs:
            every = 0
            kept = program.use(*loaders)
            del kept
            every, turn = max(1, turn // _LOOKS), 0
        look()
        kept = program.use(*loaders)
        look()
        del kept
        gc.collect()
        after = _mb()
    figures = {"mb": max(most, after) - before, "after_mb": after - before}
    return {"checksum": checksum, "batches": turn, **figures}


def _mb() -> float:
    """Weigh this process, what it was forked from, and its workers: each page once."""
    this, workers = process_ids()
    return all_mb([os.getppid(), this, *workers])


class _Seen:
    """A loader whose batches are shown to a function on their way."""

    def __init__(self, loader: Any, see: See):
        self._loader, self._see = loader, see

    def __iter__(self) -> Iterator:
        for batch in self._loader:
            self._see(batch)
            yield batch


@contextmanager
def _opened(program: Program, load: Load, loader: str, see: See) -> Iterator[list[_Seen]]:
    """Open the loaders of a program."""
    warnings.simplefilter("ignore")  # more workers than cores, and advice about what is kept
    arguments = {"num_workers": _WORKERS, "persistent_workers": program.persistent}
    arguments |= load.arguments | program.options
    with ExitStack() as stack:
        yield [
            _Seen(stack.enter_context(opened(loader, load.dataset, **arguments)), see)
            for _ in range(program.loaders)
        ]


def _touch(batch: Any) -> None:
    """Read a few elements of a few leaves; walking through all of many would hide what is asked."""
    parts = batch.values() if isinstance(batch, dict) else batch
    parts = islice(parts, _TOUCHED) if isinstance(batch, (list, tuple, dict)) else [batch]
    touch([part for part in parts if hasattr(part, "nbytes")] or [0])

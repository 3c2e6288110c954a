"""
Who iterates the loaders of a program, and what each epoch took.

Key invariant: a loader behaves as without us. Its iterators are of torch's own classes and of ours:
ours count what they take, torch's are timed from outside, by a function before torch's `__next__`.
"""

import atexit
import functools
import json
import multiprocessing
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from multiprocessing import util
from typing import Any

import torch.utils.data
from torch.utils.data.dataloader import _BaseDataLoaderIter

from shmloader import dataloader, interception
from shmloader.cli.run.epochs import OURS, TORCHS, Clock, Watched
from shmloader.cli.run.table import lines
from shmloader.errors import at_users_line
from shmloader.stats.words import times
from shmloader.trainer.epoch import length_of
from shmloader.trainer.iterator import RingIterator
from shmloader.trainer.service import Evidence
from shmloader.trainer.without_workers import why_unserved

# Where a launcher says which rank this is: torchrun, Open MPI, other MPIs, Slurm.
_RANKS = ("RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


class Observer:
    """All loaders of this process."""

    def __init__(self, compare: bool, torchs: Callable[[Any], Any]) -> None:
        """Know none yet; with compare, torch's `_get_iterator` serves every second epoch."""
        self.seen: list[Watched] = []
        self.begun = time.monotonic()
        self._compare, self._torchs = compare, torchs
        # What loaders are judged by at the end; of alike ones, as those made anew, the last one's.
        self.evidence: dict[tuple[str, int | None], Evidence] = {}
        self._by_loader: dict[int, tuple[weakref.ref[Any], Watched]] = {}
        self._clocks: weakref.WeakKeyDictionary[Any, Clock] = weakref.WeakKeyDictionary()

    def find(self, loader: Any) -> Watched:
        """Return what is known of a loader, from now on if it is new, or was changed."""
        key, title = id(loader), _title(loader)
        entry, counted = self._by_loader.get(key), set()
        if entry is not None and entry[0]() is loader:
            if entry[1].title == title:
                return entry[1]
            entry[1].kept.clear()
            self._take_evidence(entry[1])
            counted = entry[1].counted
        watched = Watched(title, _length(loader), counted=counted)

        def forget(_: object) -> None:
            watched.kept.clear()
            self._by_loader.pop(key, None)

        self._by_loader[key] = weakref.ref(loader, forget), watched
        self.seen.append(watched)
        return watched

    def iterate(self, loader: Any, torchs_iter: Callable[[Any], Any]) -> Any:
        """Begin an epoch, whose turn it is."""
        watched = self.find(loader)
        self._choose(loader, watched)
        clock, begin_s = Clock(), time.perf_counter()
        watched.is_chosen = True
        try:
            iterator = self._begin(loader, watched, torchs_iter)
        finally:
            watched.is_chosen = False
        if isinstance(iterator, _BaseDataLoaderIter):  # persistent ones stay whose they are
            watched.turn = OURS if isinstance(iterator, RingIterator) else TORCHS
        if not watched.is_ours_to_make:
            watched.turn = TORCHS
            watched.reason = f"{type(loader).__name__} makes its own iterators"
        took = watched.took[watched.turn]
        took.epochs += 1
        took.waited_s += time.perf_counter() - begin_s
        self._follow(loader, watched, iterator, clock)
        return iterator

    def _follow(self, loader: Any, watched: Watched, iterator: Any, clock: Clock) -> None:
        """Have what the iterator takes be counted, however its epoch and its loader end."""
        if watched.turn == TORCHS:
            clock.took = watched.took[TORCHS]
            if isinstance(iterator, _BaseDataLoaderIter):
                self._clocks[iterator] = clock
        elif isinstance(iterator, RingIterator):
            served = interception.served_by(loader)
            if served is not None:
                watched.count(served[0], is_over=True)
                key = id(iterator)
                ended = weakref.ref(iterator, lambda _: self._take_evidence(watched, key))
                watched.served[key] = (ended, *served)

    def next(self, iterator: Any, torchs_next: Callable[[Any], Any]) -> Any:
        """Take the next batch of an iterator of torch's class, on its clock if it has one."""
        step = functools.partial(torchs_next, iterator)
        length = iterator._IterableDataset_len_called
        if length is not None and iterator._num_yielded >= length:  # torch will warn
            step = functools.partial(at_users_line, step)
        clock = self._clocks.get(iterator)
        if clock is None:
            return step()
        batch = clock.time(step)
        clock.took.batches += 1
        return batch

    def rewind(self, loader: Any) -> None:
        """Undo what a second persistent iterator drew for its seed, which one alone would not."""
        watched = self.find(loader)
        if watched.before is not None:
            _generator_of(loader).set_state(watched.before)
            watched.before = None

    def take_evidence(self) -> None:
        """Take what the loaders that live are judged by: the program ends."""
        for watched in self.seen:
            self._take_evidence(watched)

    def _take_evidence(self, watched: Watched, *of: int) -> None:
        evidence = watched.take_evidence(of or [*watched.served])
        if evidence is not None:
            self.evidence[watched.kind] = evidence

    def _choose(self, loader: Any, watched: Watched) -> None:
        has_begun = any(took.epochs for took in watched.took.values())
        if watched.is_ours_to_make or not has_begun:
            watched.reason = _why_torchs(loader)
        is_behind = watched.took[OURS].epochs <= watched.took[TORCHS].epochs
        watched.turn = OURS if not watched.reason and (is_behind or not self._compare) else TORCHS

    def _begin(self, loader: Any, watched: Watched, torchs_iter: Callable[[Any], Any]) -> Any:
        is_persistent = loader.persistent_workers and loader.num_workers > 0
        if watched.reason or not (self._compare and is_persistent):
            return torchs_iter(loader)
        if loader._iterator is None:  # as frameworks do that want new workers
            watched.kept.clear()
        loader._iterator = watched.kept.get(watched.turn)
        is_second = watched.kept and loader._iterator is None
        watched.before = _generator_of(loader).get_state() if is_second else None
        torchs_iter(loader)
        watched.kept[watched.turn] = loader._iterator
        return loader._iterator

    def make(self, loader: Any, ours: Callable[[Any], Any] = interception.served_iterator) -> Any:
        """Make an iterator for the epoch that begins; `ours` makes one of ours, or None."""
        watched, clock = self._asked(loader), Clock()
        iterator = ours(loader)
        if iterator is None:
            watched.turn = TORCHS
            iterator = self._torchs(loader)
        if watched.turn == TORCHS:
            watched.is_chosen = False
            self._follow(loader, watched, iterator, clock)
        return iterator

    def make_ours(self, loader: Any, ours: Callable[[], Any]) -> Any:
        """Make an iterator of ours for the epoch that begins; None if it is torch's turn."""
        watched = self._asked(loader)
        if watched.turn == TORCHS:
            return None  # and is asked to make torch's next
        watched.is_chosen = False
        iterator = ours()
        self._follow(loader, watched, iterator, Clock())
        return iterator

    def _asked(self, loader: Any) -> Watched:
        watched = self.find(loader)
        watched.is_ours_to_make = True
        if not watched.is_chosen:  # a class whose `__iter__` does not call torch's
            self._choose(loader, watched)
            watched.took[watched.turn].epochs += 1
            watched.is_chosen = True
        return watched


_first_use = threading.Lock()
_observer: Observer | None = None


def begin(text: str, torchs: Callable[[Any], Any]) -> Observer:
    """Serve and watch the loaders of this process, and say at its end what they did."""
    global _observer
    with _first_use:
        if _observer is None:
            settings = json.loads(text)
            _observer = _begin(settings, torchs)
            # A dataset may have loaders too: its workers would say so in every epoch.
            if _is_first_rank() and torch.utils.data.get_worker_info() is None:
                _at_exit(_observer, settings)
        return _observer


def _begin(settings: dict[str, Any], torchs: Callable[[Any], Any]) -> Observer:
    observer = Observer(settings["compare"], torchs)
    if not interception.is_installed():  # by the program, whose options are more than the command's
        interception.install(**settings["options"])
    interception.set_maker(observer.make_ours)
    _observe_our_class(observer)
    _observe_torchs_iterators(observer)
    return observer


def _observe_our_class(observer: Observer) -> None:
    our_kind: Any = dataloader.DataLoader
    our_own = our_kind._get_iterator

    def ours(loader: Any) -> Any:
        if loader.num_workers == 0:
            return our_own(loader)
        return observer.make_ours(loader, lambda: our_own(loader))

    our_kind._get_iterator = lambda loader: observer.make(loader, ours)


def _observe_torchs_iterators(observer: Observer) -> None:
    kind: Any = _BaseDataLoaderIter
    torchs_next, torchs_reset = kind.__next__, kind._reset

    def __next__(self: Any) -> Any:
        return observer.next(self, torchs_next)

    def _reset(self: Any, loader: Any, first_iter: bool = False) -> None:
        observer.rewind(loader)
        torchs_reset(self, loader, first_iter)

    kind.__next__, kind._reset = __next__, _reset


def _generator_of(loader: Any) -> torch.Generator:
    """Return what a loader's sampler draws from, unless that has a generator of its own."""
    return loader.generator or torch.default_generator


def _at_exit(observer: Observer, settings: dict[str, Any]) -> None:
    pid = os.getpid()
    process = "" if pid == settings["pid"] else f"process {pid}"

    def say() -> None:
        # Not the program's own sys.stderr, which may be a file, or closed. None: there was none.
        if os.getpid() == pid and sys.__stderr__ is not None:
            observer.take_evidence()
            seconds = time.monotonic() - observer.begun
            text = "\n".join(
                lines(observer.seen, observer.evidence, seconds, process, settings["compare"])
            )
            print(text, file=sys.__stderr__, flush=True)

    if multiprocessing.parent_process() is None:
        atexit.register(say)
    else:  # a child of multiprocessing leaves without atexit's functions
        util.Finalize(None, say, exitpriority=0)


def _is_first_rank() -> bool:
    """Returns True for one of the ranks of a launcher, and for a program without ranks."""
    return next((os.environ[name] for name in _RANKS if name in os.environ), "0") == "0"


def _title(loader: Any) -> str:
    workers = times(loader.num_workers, "worker")
    if getattr(loader, "max_workers", None) is not None:
        workers = f"at most {workers}"
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    batches = f"batch_size {size}" if size else "batches of any size"
    return f"{type(loader.dataset).__name__}, {batches}, {workers}"


def _length(loader: Any) -> int | None:
    try:
        return length_of(loader)
    except Exception:
        return None  # of the user's; torch will raise it where it must


def _why_torchs(loader: Any) -> str:
    """Say why a loader stays torch's; "" if it does not."""
    if loader.num_workers == 0:
        return "it has no workers: this process fetches its samples"
    if why_unserved(loader):
        return "its workers are threads"
    if not (interception.is_installed() or isinstance(loader, dataloader.DataLoader)):
        return "the program called shmloader.uninstall()"
    return ""

"""
Who iterates the loaders of a program, and what each epoch took.

Key invariant: a loader behaves as without us. Iterators are of torch's and our own classes, timed
by a subclass of the same name; an epoch belongs to one of them from its start to its end.
"""

import atexit
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
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from shmloader import dataloader, serving
from shmloader.cli.run.records import OURS, TORCHS, Passes, Watched, generator_of
from shmloader.cli.run.settings import Settings
from shmloader.cli.run.table import lines
from shmloader.errors import at_users_line
from shmloader.trainer.iterator import RingIterator
from shmloader.trainer.service import why_unserved

# Where a launcher says which rank this is: torchrun, Open MPI, other MPIs, Slurm.
_RANKS = ("RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


class Watch:
    """All loaders of this process."""

    def __init__(self, compare: bool) -> None:
        """Know none yet."""
        self.seen: list[Watched] = []
        self.begun = time.monotonic()
        self._compare = compare
        self._judged: dict[str, Watched] = {}
        self._by_loader: dict[int, tuple[weakref.ref[Any], Watched]] = {}

    def find(self, loader: Any) -> Watched:
        """Return what is known of a loader, from now on if it is new, or was changed."""
        key, title = id(loader), _title(loader)
        entry = self._by_loader.get(key)
        if entry is not None and entry[0]() is loader:
            if entry[1].title == title:
                return entry[1]
            entry[1].kept.clear()
            self._take_evidence(entry[1])
        watched = Watched(title)

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
        spent = Passes(epochs=1)
        watched.is_chosen = True
        try:
            iterator = spent.time(lambda: self._begin(loader, watched, torchs_iter))
        finally:
            watched.is_chosen = False
        if isinstance(iterator, _BaseDataLoaderIter):  # persistent ones stay whose they are
            watched.turn = OURS if isinstance(iterator, RingIterator) else TORCHS
        if not watched.is_ours_to_make:
            watched.turn = TORCHS
            watched.reason = f"{type(loader).__name__} makes iterators of its own"
        watched.passes[watched.turn].add(spent)
        if watched.turn == OURS and isinstance(iterator, RingIterator):
            self._note_service(loader, watched, iterator)
        return iterator

    def _note_service(self, loader: Any, watched: Watched, iterator: RingIterator) -> None:
        """Have evidence taken when the iterator ends; the loader may have ended long before."""
        served = serving.served_by(loader)
        if served is not None:
            key = id(iterator)
            ended = weakref.ref(iterator, lambda _: self._take_evidence(watched, key))
            watched.served[key] = (ended, *served)

    def take_evidence(self) -> None:
        """Take what the loaders that live are judged by: the program ends."""
        for watched in self.seen:
            self._take_evidence(watched)

    def _take_evidence(self, watched: Watched, *of: int) -> None:
        """Take it of one loader; of alike ones, as those made anew, the last one's is enough."""
        watched.take_evidence(of or [*watched.served])
        if watched.evidence is not None:
            before = self._judged.get(watched.title, watched)
            if before is not watched:
                before.evidence = None
            self._judged[watched.title] = watched

    def _choose(self, loader: Any, watched: Watched) -> None:
        has_begun = any(passes.epochs for passes in watched.passes.values())
        if watched.is_ours_to_make or not has_begun:
            watched.reason = _why_torchs(loader)
        took = watched.passes
        is_behind = took[OURS].epochs <= took[TORCHS].epochs
        watched.turn = OURS if not watched.reason and (is_behind or not self._compare) else TORCHS

    def _begin(self, loader: Any, watched: Watched, torchs_iter: Callable[[Any], Any]) -> Any:
        is_persistent = loader.persistent_workers and loader.num_workers > 0
        if watched.reason or not (self._compare and is_persistent):
            return torchs_iter(loader)
        if loader._iterator is None:  # as frameworks do that want new workers
            watched.kept.clear()
        loader._iterator = watched.kept.get(watched.turn)
        torchs_iter(loader)
        watched.kept[watched.turn] = loader._iterator
        return loader._iterator

    def make(self, loader: Any, ours: Callable[[Any], Any] = serving.served_iterator) -> Any:
        """
        Make an iterator for the epoch that begins.

        Args:
            ours: Makes one of ours, or None.
        """
        watched = self._asked(loader)
        iterator = ours(loader)
        if iterator is not None:
            return iterator
        watched.turn, watched.is_chosen = TORCHS, False
        if loader.num_workers == 0:
            return watched.timed(_SingleProcessDataLoaderIter)(loader)
        at_users_line(loader.check_worker_number_rationality, torch.utils.data.DataLoader)
        return watched.timed(_MultiProcessingDataLoaderIter, _state_before(loader, watched))(loader)

    def our_kind(self, loader: Any) -> Any:
        """Return the class of ours for the epoch that begins; None if it is torch's turn."""
        watched = self._asked(loader)
        if watched.turn == TORCHS:
            return None  # and is asked to make torch's next
        watched.is_chosen = False
        return watched.timed(RingIterator, _state_before(loader, watched))

    def _asked(self, loader: Any) -> Watched:
        watched = self.find(loader)
        watched.is_ours_to_make = True
        if not watched.is_chosen:  # a class whose `__iter__` does not call torch's
            self._choose(loader, watched)
            watched.passes[watched.turn].epochs += 1
            watched.is_chosen = True
        return watched


_first_use = threading.Lock()
_watch: Watch | None = None


def begin(text: str) -> Watch:
    """
    Serve and watch the loaders of this process, and say at its end what they did.

    Args:
        text: The settings, as in the variable.
    """
    global _watch
    with _first_use:
        if _watch is None:
            settings = Settings.from_text(text)
            _watch = _begin(settings)
            # A dataset may have loaders too: its workers would say so in every epoch.
            if _is_first_rank() and torch.utils.data.get_worker_info() is None:
                _at_exit(_watch, settings)
        return _watch


def _begin(settings: Settings) -> Watch:
    watch = Watch(settings.compare)
    if not serving.is_installed():  # by the program, whose options are more than the command's
        serving.install(**settings.options)
    serving.set_kind(watch.our_kind)
    our_kind: Any = dataloader.DataLoader
    our_own = our_kind._get_iterator

    def ours(loader: Any) -> Any:
        kind = watch.our_kind(loader)
        return None if kind is None else our_own(loader, kind=kind)

    our_kind._get_iterator = lambda loader: watch.make(loader, ours)
    return watch


def _state_before(loader: Any, watched: Watched) -> torch.Tensor | None:
    """Return what a second persistent iterator's first epoch draws from: it draws one seed more."""
    return generator_of(loader).get_state() if watched.kept else None


def _at_exit(watch: Watch, settings: Settings) -> None:
    pid = os.getpid()
    process = "" if pid == settings.pid else f"process {pid}"

    def say() -> None:
        # Not the program's own sys.stderr, which may be a file, or closed. None: there was none.
        if os.getpid() == pid and sys.__stderr__ is not None:
            watch.take_evidence()
            seconds = time.monotonic() - watch.begun
            text = "\n".join(lines(watch.seen, seconds, process, settings.compare))
            print(text, file=sys.__stderr__, flush=True)

    if multiprocessing.parent_process() is None:
        atexit.register(say)
    else:  # a child of multiprocessing leaves without atexit's functions
        util.Finalize(None, say, exitpriority=0)


def _is_first_rank() -> bool:
    """Returns True for one of the ranks of a launcher, and for a program without ranks."""
    return next((os.environ[name] for name in _RANKS if name in os.environ), "0") == "0"


def _title(loader: Any) -> str:
    workers = "1 worker" if loader.num_workers == 1 else f"{loader.num_workers} workers"
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    batches = f"batch_size {size}" if size else "batches as they come"
    return f"{type(loader.dataset).__name__}, {batches}, {workers}"


def _why_torchs(loader: Any) -> str:
    """Say why a loader stays torch's; "" if it does not."""
    if loader.num_workers == 0:
        return "no workers: this process fetches its samples"
    if why_unserved(loader):
        return "its workers are threads"
    if not (serving.is_installed() or isinstance(loader, dataloader.DataLoader)):
        return "the program called shmloader.uninstall()"
    return ""

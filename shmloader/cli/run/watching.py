"""
Who iterates the loaders of a program, and what each epoch took.

Key invariant: a loader behaves as without us. Iterators are of torch's and our own classes, timed
by a subclass of the same name; an epoch belongs to one of them from its start to its end.
"""

import atexit
import multiprocessing
import os
import sys
import time
import weakref
from collections.abc import Callable
from multiprocessing import util
from typing import Any

import torch.utils.data
from torch.utils.data.dataloader import (
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from shmloader import dataloader, serving
from shmloader.cli.run.records import OURS, TORCHS, Watched, generator_of
from shmloader.cli.run.settings import Settings
from shmloader.cli.run.table import lines
from shmloader.trainer.iterator import RingIterator
from shmloader.trainer.service import why_unserved


class Watch:
    """All loaders of this process."""

    def __init__(self, compare: bool) -> None:
        """Know none yet."""
        self.seen: list[Watched] = []
        self.begun = time.monotonic()
        self._compare = compare
        self._by_loader: dict[int, tuple[weakref.ref[Any], Watched]] = {}

    def find(self, loader: Any) -> Watched:
        """Return what is known of a loader, from now on if it is new."""
        key = id(loader)
        entry = self._by_loader.get(key)
        if entry is not None and entry[0]() is loader:
            return entry[1]
        reason = _why_torchs(loader)
        watched = Watched(_title(loader), reason, turn=TORCHS if reason else OURS)

        def forget(_: object) -> None:
            watched.kept.clear()
            self._by_loader.pop(key, None)

        self._by_loader[key] = weakref.ref(loader, forget), watched
        self.seen.append(watched)
        return watched

    def iterate(self, loader: Any, torchs_iter: Callable[[Any], Any]) -> Any:
        """Begin an epoch, whose turn it is."""
        watched = self.find(loader)
        if self._compare and not watched.reason:
            took = watched.passes
            watched.turn = OURS if took[OURS].epochs <= took[TORCHS].epochs else TORCHS
        passes = watched.passes[watched.turn]
        passes.epochs += 1
        is_persistent = loader.persistent_workers and loader.num_workers > 0
        if not (self._compare and is_persistent):
            return passes.time(lambda: torchs_iter(loader))
        if loader._iterator is None:  # as frameworks do that want new workers
            watched.kept.clear()
        loader._iterator = watched.kept.get(watched.turn)
        passes.time(lambda: torchs_iter(loader))
        watched.kept[watched.turn] = loader._iterator
        return loader._iterator

    def make(self, loader: Any, ours: Callable[..., Any]) -> Any:
        """
        Make an iterator for the epoch that begins.

        Args:
            ours: Makes one of ours of a given class, or None.
        """
        watched = self.find(loader)
        # A second persistent iterator draws a base seed that a program without it would not draw.
        before = generator_of(loader).get_state() if watched.kept else None
        if watched.turn == OURS:
            iterator = ours(loader, kind=watched.timed(RingIterator, before))
            if iterator is not None:
                return iterator
        if loader.num_workers == 0:
            return watched.timed(_SingleProcessDataLoaderIter)(loader)
        loader.check_worker_number_rationality()
        return watched.timed(_MultiProcessingDataLoaderIter, before)(loader)


def begin() -> None:
    """Serve and watch the loaders of this process, and say at its end what they did."""
    settings = Settings.from_environment()
    serving.install(**settings.options)
    watch = Watch(settings.compare)
    kind: Any = torch.utils.data.DataLoader
    torchs_iter = kind.__iter__
    our_kind: Any = dataloader.DataLoader
    our_own = our_kind._get_iterator
    kind.__iter__ = lambda loader: watch.iterate(loader, torchs_iter)
    kind._get_iterator = lambda loader: watch.make(loader, serving.served_iterator)
    our_kind._get_iterator = lambda loader: watch.make(loader, our_own)
    if _is_first_rank():
        _at_exit(watch)


def _at_exit(watch: Watch) -> None:
    pid = os.getpid()

    def say() -> None:
        if os.getpid() == pid:
            seconds = time.monotonic() - watch.begun
            print("\n".join(lines(watch.seen, seconds)), file=sys.stderr, flush=True)

    if multiprocessing.parent_process() is None:
        atexit.register(say)
    else:  # a child of multiprocessing leaves without atexit's functions
        util.Finalize(None, say, exitpriority=0)


def _is_first_rank() -> bool:
    """Returns True for one of the ranks of a launcher, and for a program without ranks."""
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"


def _title(loader: Any) -> str:
    workers = "1 worker" if loader.num_workers == 1 else f"{loader.num_workers} workers"
    size = getattr(loader, "batch_size", None)
    batches = f"batch_size {size}" if size else "batches as they come"
    return f"{type(loader.dataset).__name__}, {batches}, {workers}"


def _why_torchs(loader: Any) -> str:
    """Say why a loader stays torch's; "" if it does not."""
    if loader.num_workers == 0:
        return "no workers: this process fetches its samples"
    if why_unserved(loader):
        return "its workers are threads"
    own = type(loader)._get_iterator
    if own not in (torch.utils.data.DataLoader._get_iterator, dataloader.DataLoader._get_iterator):
        return f"{type(loader).__name__} makes iterators of its own"
    return ""

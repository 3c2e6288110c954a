"""The epochs of a loader: those that run, the last ones that ended, and the times of all."""

import weakref
from collections import deque
from typing import Protocol

from shmloader.metrics.record import Epoch, Times

_KEPT_EPOCHS = 64


class Running(Protocol):
    """An epoch that runs."""

    def now(self) -> Epoch | None:
        """What it has done until now; None if it has ended."""


class History:
    """What a loader's epochs did, over all of its iterators."""

    def __init__(self) -> None:
        """Have no epoch yet."""
        self._count = 0
        self._ended: deque[Epoch] = deque(maxlen=_KEPT_EPOCHS)
        self._next, self._step = Times(), Times()
        # By number: another thread may begin one while these are listed.
        self._running: weakref.WeakValueDictionary[int, Running] = weakref.WeakValueDictionary()

    def begin(self, epoch: Running) -> int:
        """Number an epoch that begins now, from 1."""
        self._count += 1
        self._running[self._count] = epoch
        return self._count

    def end(self, epoch: Epoch) -> None:
        """Take in what an epoch was in the end."""
        self._running.pop(epoch.number, None)
        self._ended.append(epoch)
        self._next += epoch.next
        self._step += epoch.step

    def epochs(self) -> tuple[Epoch, ...]:
        """List the last epochs, those that run too, by number."""
        running = [each.now() for each in (ref() for ref in self._running.valuerefs()) if each]
        found = [*self._ended, *(epoch for epoch in running if epoch is not None)]
        return tuple(sorted(found, key=lambda epoch: epoch.number)[-_KEPT_EPOCHS:])

    def times(self) -> tuple[Times, Times]:
        """How long each next() and each step took, in all epochs."""
        running = [each.now() for each in (ref() for ref in self._running.valuerefs()) if each]
        epochs = [epoch for epoch in running if epoch is not None]
        return (
            sum((epoch.next for epoch in epochs), self._next),
            sum((epoch.step for epoch in epochs), self._step),
        )

"""
The epochs of a loader: those that run, the last ones that ended, and the times of all.

Another thread may look at any line, such as one that exports counters, which must never go back. So
an epoch is taken in before it is taken out, what is taken in is replaced as a whole, and who looks
asks those that run first, and leaves out what has ended since.
"""

import weakref
from typing import NamedTuple, Protocol

from shmloader.stats.records import Epoch, Times

_KEPT_EPOCHS = 64


class Running(Protocol):
    """An epoch that runs."""

    def now(self) -> Epoch | None:
        """What it has done until now; None if it has ended."""


class _Ended(NamedTuple):
    """The last epochs that ended, and the times of all that did."""

    epochs: tuple[Epoch, ...] = ()
    next: Times = Times()
    step: Times = Times()

    def has(self, number: int) -> bool:
        return any(epoch.number == number for epoch in self.epochs)


class History:
    """What a loader's epochs did, over all of its iterators."""

    def __init__(self) -> None:
        """Have no epoch yet."""
        self._count = 0
        self._ended = _Ended()
        # By number: another thread may begin one while these are listed.
        self._running: weakref.WeakValueDictionary[int, Running] = weakref.WeakValueDictionary()

    def begin(self, epoch: Running) -> int:
        """Number an epoch that begins now, from 1."""
        self._count += 1
        self._running[self._count] = epoch
        return self._count

    def end(self, epoch: Epoch) -> None:
        """Take in what an epoch was in the end, once."""
        ended = self._ended
        if not ended.has(epoch.number):
            kept = (*ended.epochs, epoch)[-_KEPT_EPOCHS:]
            self._ended = _Ended(kept, ended.next + epoch.next, ended.step + epoch.step)
        self._running.pop(epoch.number, None)

    def _look(self) -> tuple[list[Epoch], _Ended]:
        """List the epochs that run, and what has ended."""
        running = [each.now() for each in (ref() for ref in self._running.valuerefs()) if each]
        ended = self._ended
        return [epoch for epoch in running if epoch and not ended.has(epoch.number)], ended

    def epochs(self) -> tuple[Epoch, ...]:
        """List the last epochs, those that run too, by number."""
        running, ended = self._look()
        found = sorted([*ended.epochs, *running], key=lambda epoch: epoch.number)
        return tuple(found[-_KEPT_EPOCHS:])

    def times(self) -> tuple[Times, Times]:
        """How long each next() and each step took, in all epochs."""
        running, ended = self._look()
        return (
            sum((epoch.next for epoch in running), ended.next),
            sum((epoch.step for epoch in running), ended.step),
        )

"""
All shared memory of this process: one account for every loader.

Pages that are idle, which only wait for a loader's next epoch, go when others need the room. The
trainer looks at the start of an epoch and now and then while much memory is in use.
"""

import threading
import weakref
from typing import Protocol

from shmloader.core import generation
from shmloader.memory import limits

# Idle pages may be this part of what could be had: of what is available and they themselves.
_IDLE_PART = 4


class Owner(Protocol):
    """Whoever has segments, some of which may be idle."""

    @property
    def idle_bytes(self) -> int:
        """Bytes of pages that wait for an epoch."""

    @property
    def used_bytes(self) -> int:
        """Bytes of pages in segments whose epoch runs."""

    def give_back(self) -> None:
        """Give all idle pages back."""


class Account:
    """
    Knows every owner of segments in this process.

    Attributes:
        lock: Held while a segment becomes idle, stops being so, or loses its pages: owners may be
            of different threads.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._generation = generation()
        self._owners: weakref.WeakValueDictionary[int, Owner] = weakref.WeakValueDictionary()

    @property
    def is_of_another_process(self) -> bool:
        """True in a forked child: the segments are its parent's, and so is the lock."""
        return self._generation != generation()

    def enter(self, owner: Owner) -> None:
        """Count an owner's segments for as long as the owner lives."""
        self._owners[id(owner)] = owner

    def _others(self, owner: Owner) -> list[Owner]:
        living = (reference() for reference in self._owners.valuerefs())
        return [other for other in living if other is not None and other is not owner]

    def used_by_others(self, owner: Owner) -> int:
        """Bytes of pages that all other owners' running epochs have."""
        return sum(other.used_bytes for other in self._others(owner))

    def make_room(self, owner: Owner, available_bytes: int | None = None) -> None:
        """
        Have all other owners give their idle pages back, if those are much of what there is.

        Args:
            available_bytes: Of memory, if it was read just now.
        """
        others = self._others(owner)
        idle_bytes = sum(other.idle_bytes for other in others)
        if idle_bytes == 0:
            return
        if available_bytes is None:
            available_bytes = limits.available_bytes()
        if available_bytes is None or idle_bytes * _IDLE_PART > idle_bytes + available_bytes:
            for other in others:
                other.give_back()


_account = Account()


def account() -> Account:
    """The account of this process."""
    global _account
    if _account.is_of_another_process:
        _account = Account()
    return _account

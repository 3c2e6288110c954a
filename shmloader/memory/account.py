"""
All shared memory of this process: one account for every loader, and for data kept beside them.

Pages that are idle, which only wait for a loader's next epoch, go when others need the room. The
trainer looks at the start of an epoch and now and then while much memory is in use. In a shortage
the pages go that wait for later batches of running epochs, too.
"""

import weakref
from typing import Protocol, TypeVar

from shmloader.core import generation
from shmloader.memory import limits, policy

_Value = TypeVar("_Value")


class SegmentOwner(Protocol):
    """An owner of segments, some of which may be idle. Any thread may ask it."""

    @property
    def idle_bytes(self) -> int:
        """Bytes of pages that wait for an epoch."""

    def give_back(self, *, while_running: bool) -> None:
        """Give idle pages back; while_running: also those that wait for later batches."""


class Keeper(Protocol):
    """Keeps data in shared memory for as long as it lives: none of it is idle."""

    @property
    def most_bytes(self) -> int:
        """All that it may ever take."""

    @property
    def taken_bytes(self) -> int:
        """What it has taken so far."""


class Account:
    """Knows every owner of segments in this process, and whatever keeps data beside them."""

    def __init__(self) -> None:
        self.generation = generation()  # in a forked child the segments are its parent's
        self._owners: weakref.WeakValueDictionary[int, SegmentOwner] = weakref.WeakValueDictionary()
        self._keepers: weakref.WeakValueDictionary[int, Keeper] = weakref.WeakValueDictionary()

    def enter(self, owner: SegmentOwner) -> None:
        """Count an owner's segments for as long as the owner lives."""
        self._owners[id(owner)] = owner

    def enter_keeper(self, keeper: Keeper) -> None:
        """Count what a keeper may take for as long as it lives."""
        self._keepers[id(keeper)] = keeper

    @property
    def kept_bytes(self) -> int:
        """All that the keepers may ever take, in bytes."""
        return sum(keeper.most_bytes for keeper in living(self._keepers))

    @property
    def coming_bytes(self) -> int:
        """What the keepers may still take, in bytes."""
        keepers = living(self._keepers)
        return sum(max(0, keeper.most_bytes - keeper.taken_bytes) for keeper in keepers)

    def _others(self, owner: SegmentOwner | None) -> list[SegmentOwner]:
        return [other for other in living(self._owners) if other is not owner]

    def make_room(self, owner: SegmentOwner, available_bytes: int | None = None) -> None:
        """Have all other owners give idle pages back, if those are much of the memory available."""
        others = self._others(owner)
        idle_bytes = sum(other.idle_bytes for other in others)
        if idle_bytes == 0:
            return
        if available_bytes is None:
            available_bytes = limits.available_bytes()
        if available_bytes is None or idle_bytes * policy.IDLE_PART > idle_bytes + available_bytes:
            for other in others:
                other.give_back(while_running=False)

    def end_shortage(self, owner: SegmentOwner | None) -> None:
        """Have all other owners, or all, give back every page that no batch lies in."""
        for other in self._others(owner):
            other.give_back(while_running=True)


def living(values: "weakref.WeakValueDictionary[int, _Value]") -> list[_Value]:
    """List the objects that are still there."""
    # Listed by one step of the interpreter: another thread may add one meanwhile.
    found = (reference() for reference in values.valuerefs())
    return [value for value in found if value is not None]


_account = Account()


def account() -> Account:
    """The account of this process."""
    global _account
    if _account.generation != generation():
        _account = Account()
    return _account

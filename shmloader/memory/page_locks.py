"""
Slots that are page-locked for devices: how many there may be, and when their locks are undone.

A lock belongs to its segment, and outlives the iterators that use it. The driver is called by
next(), iter() and close() alone, on their threads, never by a destructor: what a dropped loader
leaves is seen to by whichever of these comes next, of whatever loader.
"""

import contextlib
import errno
import os
import time
from collections import Counter

from shmloader import log
from shmloader.core import Ledger, driver_works, is_dropped, locked_bytes, met_capture, poll
from shmloader.memory import limits, policy

# A graph is captured, CUDA has no context yet, or a signal came.
_NOT_NOW = (-errno.EBUSY, -errno.ENODEV, -errno.EINTR)

# All that have locks, those of dropped loaders too: listed, because destructors may run meanwhile.
_all: list["PageLocks"] = []

_said: set[str] = set()  # warnings, each of which is given once in the process


class PageLocks:
    """
    The page-locked slots of one segment, whose batches may stay in them.

    Attributes:
        way: What became of the batch that was asked about last: "in_place", or why it is copied:
            "staged": it cannot stay, "pinned": there was no room for it to stay.
    """

    def __init__(self, ledger: Ledger, name: str, counts: "Counter[str]") -> None:
        """Have no lock; the name is for the log, nanoseconds of locking are counted `lock_ns`."""
        self.way = "staged"
        self.ledger = ledger  # which knows what was locked, and the fences behind dropped batches
        self.may_lock_any = False  # True if slots can be page-locked, as far as is known
        self.rests = False  # True while no epoch runs and free slots need no lock
        self.is_left = False  # True once the loader was closed or dropped
        self._name, self._counts = name, counts
        self._varies = False  # in size: a slot had to be locked again for a larger batch
        self._refused = False
        self._short_s = -policy.LOCKED_AGAIN_S  # when there was no room for a lock
        self._complaint: str | None = None
        self._has_failed = False

    def may_take(self, slot: int) -> bool:
        """Returns True if the batch in a ready slot is worth a lock, and it may be possible."""
        is_possible = self.may_lock_any and not self._refused and driver_works()
        may_stay = is_possible and self.ledger.payload_bytes(slot) >= policy.LOCKED_MIN_BYTES
        self.way = "pinned" if may_stay else "staged"
        return may_stay

    def take(self, slot: int) -> bool:
        """Lock the slot that was asked about, if it may be. True: its batch is delivered in it."""
        began = time.perf_counter_ns()
        is_locked = self.way == "pinned" and self.lock(slot)
        self._counts["lock_ns"] += time.perf_counter_ns() - began
        if is_locked:
            self.way = "in_place"
        return is_locked

    def lock(self, slot: int) -> bool:
        """Lock a ready slot as far as its batch needs. Returns True if it is locked."""
        needed_bytes, locked = self.ledger.payload_bytes(slot), self.ledger.locked(slot)
        if needed_bytes <= locked:
            return True
        wanted_bytes = needed_bytes
        self._varies = self._varies or locked > 0
        if self._varies:
            wanted_bytes += needed_bytes // policy.LOCKED_AHEAD_PART
        if not self._has_room(wanted_bytes - locked):
            return False
        self.rests = False
        if self not in _all:
            _all.append(self)
        error = self.ledger.lock(slot, wanted_bytes)
        if error != 0 and error not in _NOT_NOW:
            self._refuse(error)
        return error == 0

    def _has_room(self, added_bytes: int) -> bool:
        """Returns True if memory stays that is not locked, by all ranks of the training."""
        now = time.monotonic()
        if now - self._short_s < policy.LOCKED_AGAIN_S:
            return False
        available_bytes = limits.available_bytes()
        if available_bytes is None:
            return True
        ours, ranks = locked_bytes(), limits.ranks()
        unlocked_bytes = available_bytes + ranks * ours
        has_room = ranks * (ours + added_bytes) * policy.LOCKED_MOST_PART <= unlocked_bytes
        if not has_room:
            self._short_s = now
        return has_room

    def _refuse(self, error: int) -> None:
        self._refused = True
        reason = os.strerror(-error) if error < 0 else f"CUDA error {error}"
        log.tell("%s: slots cannot be page-locked: %s", self._name, reason)
        self._complaint = (
            f"slots cannot be page-locked ({reason}): batches are copied into pinned memory by the "
            "training thread. SHMLOADER_PIN=copy does that without a warning"
        )

    # Fences

    def look(self) -> None:
        """Free slots whose copies are done, and note which copies others wait for."""
        error = self.ledger.look_at_fences()
        if self.may_lock_any and met_capture() and not self._refused:
            self._refused = True
            self._complaint = (
                "a CUDA graph was being captured while slots waited for their copies, and nothing "
                "had announced it, so that capture failed. From now on batches are copied into "
                "pinned memory. Capture with torch.cuda.graph, or set SHMLOADER_PIN=copy"
            )
        elif error and not self._has_failed:
            self._has_failed = True
            self._complaint = (
                f"a copy to a device failed (CUDA error {error}): the slots that it may read are "
                "not used again"
            )

    def complaint(self) -> str | None:
        """Return what went wrong, for a warning before a batch is in hand; None: nothing new."""
        complaint, self._complaint = self._complaint, None
        if complaint is None or complaint in _said:
            return None
        _said.add(complaint)
        return complaint

    def wait_for_slot(self, slot: int) -> bool:
        """
        Wait for copies that keep slots, no longer than it takes to copy this one's batch.

        Returns:
            True if a slot came back.
        """
        idle, copied_bytes = self.ledger.idle, self.ledger.payload_bytes(slot)
        wait_s = min(copied_bytes / policy.COPY_BYTES_PER_S, policy.FENCE_WAIT_MAX_S)
        until = time.monotonic() + wait_s
        while self.ledger.awaits_copies:
            self.look()
            if self.ledger.idle > idle:
                return True
            if time.monotonic() >= until:
                break
            poll((), policy.FENCE_LOOK_S / 10)
        return False

    # The end

    def unlock(self) -> None:
        """Undo the locks of slots that nobody fills now."""
        self.ledger.unlock(self.rests, self.is_left)
        self.ledger.rest(False)
        if self.ledger.locked_slots > 0:
            return
        with contextlib.suppress(ValueError):  # another thread did it
            _all.remove(self)
        if self.is_left:
            self.ledger.close()


def of_ledger(ledger: Ledger) -> PageLocks | None:
    """Find the locks of a ledger's slots; None if there are none."""
    return next((each for each in list(_all) if each.ledger is ledger), None)


def over(ledger: Ledger, name: str, counts: "Counter[str]") -> PageLocks:
    """Return the locks of a ledger's slots, for another iterator over it; as `PageLocks`."""
    locks = of_ledger(ledger) or PageLocks(ledger, name, counts)
    locks.may_lock_any = False  # until it is known
    return locks


def use(ledger: Ledger, is_used: bool) -> None:
    """Say whether the locks of a ledger's free slots are needed from now on."""
    locks = of_ledger(ledger)
    if locks is not None:
        locks.rests = not is_used


def unlock_free(ledger: Ledger) -> None:
    """Undo the locks of a ledger's free slots, before their pages are given back."""
    locks = of_ledger(ledger)
    if locks is not None and not log.is_in_finalizer():
        locks.ledger.unlock(free=True)


def look(ledger: Ledger) -> PageLocks | None:
    """See to a ledger's fences, and to the locks that nobody needs. Returns the ledger's."""
    if not _all:  # nearly always, and this runs for each batch
        return None
    look_at_idle()
    locks = of_ledger(ledger)
    if locks is not None:
        locks.look()
    return locks


def look_at_idle() -> None:
    """See to the locks that nobody needs: of closed loaders, and of those that keep no pages."""
    for locks in list(_all):
        locks.is_left = locks.is_left or is_dropped(locks)
        if locks.is_left or locks.rests:
            locks.ledger.look_at_fences()
            locks.unlock()

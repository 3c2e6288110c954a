"""
How many slots and bytes there are, and what may be kept of them: memory/policy.py at work.

The ledger counts. As many slots as torch would have in flight are reserved for the workers, and so
are the bytes of as many batches. A batch that would eat into the reserve is spilled: copied out
when it is delivered, so that its slot is free at once. A loop that drops its batches, but late,
gets slots for as many as it holds. A batch that contains itself holds its slot until Python's
garbage collector finds it, so that is run when slots or bytes are short.

What this process itself adds, as pages of requests or as private memory of spills, is looked at
before, because the kernel kills without an error.
"""

import time
from collections import Counter

from shmloader import log
from shmloader.core import Ledger
from shmloader.errors import OutOfSharedMemory
from shmloader.memory import limits, policy
from shmloader.memory.account import account
from shmloader.memory.limits import Headroom
from shmloader.memory.segment_pool import SegmentPool
from shmloader.stats.records import Spill

# What `Ledger.lack` finds, by its number.
_LACKS = None, Spill.KEPT_BY_WORKER, Spill.TOO_FEW_SLOTS, Spill.TOO_FEW_BYTES
FOR_ROOM = (Spill.TOO_FEW_SLOTS, Spill.TOO_FEW_BYTES)  # which dropped batches may give


class _Patience:
    """How long one batch or request is short of memory."""

    def __init__(self) -> None:
        self._ticket = -1
        self._since_s = self._seen_s = 0.0

    def is_over(self, ticket: int) -> bool:
        """Returns True if this ticket has been asked for, again and again, for too long."""
        now = time.monotonic()
        was_away = now - self._seen_s > policy.AWAY_S
        if self._ticket != ticket or was_away:
            self._ticket, self._since_s = ticket, now
        self._seen_s = now
        return now - self._since_s > policy.SHORTAGE_S


class Budget:
    """The rules for one iterator's slots and bytes."""

    def __init__(
        self,
        ledger: Ledger,
        pool: SegmentPool,
        slots: int,
        reserve: int,
        grows: bool = False,
    ) -> None:
        self.reserve = reserve  # slots that must not be leased, so that the workers stay busy
        self._ledger = ledger
        self._pool = pool
        self._slots = slots
        self._grows = grows  # the user set no number of slots, so there may be more
        self._ring_bytes = ledger.ring_bytes
        self.spills: Counter[str] = Counter()  # batches that were copied out, by reason
        self._short, self._unplaced = _Patience(), _Patience()
        self._headroom = Headroom()
        ledger.look_after_bytes = policy.LOOK_FROM_BYTES
        ledger.scarce_slots = policy.scarce_slots(slots, reserve)
        self._most_retired = policy.most_retired(slots, ledger.spares)

    def copies_in(self) -> bool:
        """
        Returns True if workers must collate in private memory, because many slots were retired.

        Every slot on its way then may still be retired, so spares must be left over for them.
        """
        return self._ledger.retired > self._most_retired

    def reason_to_spill(self, slot: int, stays: bool = True) -> Spill | None:
        """
        Why a batch must leave its slot when it is delivered; None if it need not.

        If it is copied on and does not stay, few slots or bytes are no reason: they come back by
        themselves once its copies are done.
        """
        if self._ledger.is_time_to_look():
            self._look_at_memory()
        # Nearly always there is none, and this runs for each batch.
        reason = _LACKS[self._ledger.lack(slot, self.reserve)]
        if not stays:
            return reason if reason is Spill.KEPT_BY_WORKER else None
        if reason is Spill.TOO_FEW_SLOTS and self._grows and self._ledger.grow():
            return _LACKS[self._ledger.lack(slot, self.reserve, has_grown=True)]
        return reason

    def make_room(self) -> None:
        """Give back all pages that wait for later batches, of this loader and of all others."""
        self._pool.rest_ledger(self._ledger, keeps_pages=False)
        account().end_shortage(self._pool)

    def waited_in_vain(self, ticket: int) -> bool:
        """Returns True if the oldest batch is short of memory for so long that it is refused."""
        return self._short.is_over(ticket)

    def _look_at_memory(self) -> None:
        """Where memory is short, keep fewer pages for later, here and in idle segments."""
        available_bytes = limits.available_bytes()
        if available_bytes is not None:
            # Samples are made in private memory: as much as batches lately needed is left to them.
            spare_bytes = max(0, available_bytes - self._ledger.peak_bytes)
            self._ledger.slack_bytes = spare_bytes // policy.SLACK_PART
            self._ledger.look_after_bytes = available_bytes // policy.UNSEEN_PART
            if spare_bytes == 0:
                self.make_room()
            else:
                account().make_room(self._pool, available_bytes)

    # What this process adds itself

    def can_place(self, worker: int, ticket: int, request_bytes: int) -> bool:
        """
        Returns True if there is room for a request's pages; False if it has to wait.

        Raises:
            OutOfSharedMemory: Nothing is under way whose end could make room.
        """
        is_behind = self._ledger.outstanding() > 0
        fits = not is_behind or self._ledger.fits(request_bytes)
        lacking_bytes = self._ledger.lacking(request_bytes)
        is_large = lacking_bytes > policy.RESERVE_BYTES
        if is_behind and is_large and not self._ledger.is_seated(worker):
            return False  # it will take memory that no look can see yet
        if fits and (lacking_bytes == 0 or self._has_room(lacking_bytes, policy.RESERVE_BYTES)):
            return True
        # Those before it may wait for this one, so in the end it goes beyond `ring_bytes`.
        is_late = self._unplaced.is_over(ticket)
        if (is_late or not is_behind) and self._has_room(lacking_bytes, policy.PRIVATE_BYTES):
            return True
        if is_behind or not is_late:
            return False
        raise OutOfSharedMemory(
            f"a request lacks {lacking_bytes / 1e6:.1f} MB of shared memory, but "
            f"{self._headroom.left()}: send less at once, or raise the memory limit"
        )

    def _has_room(self, added_bytes: int, reserve_bytes: int = 0) -> bool:
        """Returns True if so many bytes have room once what waits for later ones is gone."""
        if self._headroom.has(added_bytes, reserve_bytes):
            return True
        self.make_room()
        return self._headroom.has(added_bytes, reserve_bytes)

    def bytes_to_copy(self, slot: int) -> int:
        """Count the bytes of the batch in a slot if it is copied out; 0: next to nothing."""
        return self._ledger.bytes_to_copy(slot)

    def can_copy_out(self, copied_bytes: int) -> bool:
        """
        Returns True if there is private memory for a batch that leaves its slot.

        What is left then must do for the samples that workers make meanwhile, as far as a worker
        that adds pages leaves it to the others.
        """
        if copied_bytes == 0:
            return True
        busy = sum(load > 0 for load in self._ledger.loads())
        each = min(copied_bytes, policy.RESERVE_BYTES // max(1, busy)) + policy.PRIVATE_BYTES
        return self._has_room(copied_bytes, busy * each)

    def refusal(self, copied_bytes: int, reason: Spill) -> OutOfSharedMemory:
        """Make the error for a batch that must leave its slot for a reason, and cannot."""
        return OutOfSharedMemory(
            f"a batch of {copied_bytes / 1e6:.1f} MB must be copied out of its slot, because "
            f"{reason.why}, but {self._headroom.left()}: retain less of the batches, lower "
            "batch_size or num_workers, or raise the memory limit"
        )

    def can_ever_fit(self, want_bytes: int) -> bool:
        """Returns True if a batch of that size fits the budget and a slot's range."""
        return want_bytes <= min(self._ring_bytes, self._ledger.range_bytes)

    def fits(self, slot: int, want_bytes: int) -> bool:
        """Returns True if the budget has room for that grant; free slots give up pages for it."""
        return self._ledger.room(slot, want_bytes) >= want_bytes

    def note_spill(self, reason: Spill) -> None:
        """Count a spill; several of them for want of room are worth advice, once."""
        self._pool.spills[reason.label] += 1
        self.spills[reason.label] += 1
        times = self.spills[reason.label]
        together = self._pool.spills.total()
        # Told the first time, the second, the fourth, the eighth: a loop may spill every batch.
        if times & (times - 1) == 0 and log.is_heard():
            name, cure = self._pool.name, self._cure(reason)
            log.tell("%s: batch copied out, number %d because %s", name, times, cure)
        if together != policy.WARN_AFTER_SPILLS:
            return
        cure = self._cure(reason)
        # Kept for the next next(): a warning may be an error, which must not cost this batch.
        self._pool.advice = (
            f"{together} batches were copied out of their slots, the last because {cure}. This "
            "costs only the time of a copy, and what you retain takes only its own bytes."
        )

    def _cure(self, reason: Spill) -> str:
        counts = self._ledger.counts()
        forked = counts["forked"]
        if reason is Spill.TOO_FEW_SLOTS and forked > 0:
            reason = Spill.FOR_CHILDREN
        elif reason is Spill.TOO_FEW_SLOTS and counts["fenced"] > counts["leased"]:
            reason = Spill.FOR_COPIES
        text = f"{reason.why}: {reason.cure}"
        return text.format(slots=self._slots, ring_bytes=self._ring_bytes, forked=forked)

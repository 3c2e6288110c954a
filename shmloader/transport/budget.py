"""
How many slots and bytes there are, and what may be kept of them: memory/policy.py at work.

The ledger counts. As many slots as torch would have in flight are reserved for the workers, and so
are the bytes of as many batches. A batch that would eat into the reserve is spilled: copied out
when it is delivered, so that its slot is free at once. A loop that drops its batches, but late,
gets slots for as many as it holds. A batch that contains itself holds its slot until Python's
garbage collector finds it, so that is run when slots or bytes are short.
"""

import gc
import time
from collections import Counter

from shmloader import log
from shmloader.core import Figures, Ledger
from shmloader.memory import limits, policy
from shmloader.memory.account import account
from shmloader.memory.pool import SegmentPool
from shmloader.stats.record import Spill


class Budget:
    """
    The rules for one iterator's slots and bytes.

    Attributes:
        reserve: Slots that must not be leased, so that the workers stay busy.
        spills: Batches that were copied out of their slots, by reason.
    """

    def __init__(
        self,
        ledger: Ledger,
        figures: Figures,
        pool: SegmentPool,
        slots: int,
        reserve: int,
        grows: bool = False,
    ) -> None:
        """
        Apply the rules to a ledger.

        Args:
            pool: Counts the spills of the loader's whole life.
            slots: How many are in use.
            grows: True if the user set no number of slots, so that there may be more.
        """
        self.reserve = reserve
        self._ledger = ledger
        self._figures = figures
        self._pool = pool
        self._slots = slots
        self._grows = grows
        self._ring_bytes = figures.ring_bytes
        self.spills: Counter[str] = Counter()
        self._seen_bytes = 0  # of pages, when memory was last looked at
        self._short_ticket = -1  # of the oldest batch, while it is short of memory
        self._short_since = self._short_seen = 0.0
        ledger.scarce_slots = policy.scarce_slots(slots, reserve)
        self._most_retired = policy.most_retired(slots, figures.spares)

    def copies_in(self) -> bool:
        """
        Returns True if workers must collate in private memory, because many slots were retired.

        Every slot on its way then may still be retired, so spares must be left over for them.
        """
        return self._figures.retired > self._most_retired

    def reason_to_spill(self, slot: int, stays: bool = True) -> Spill | None:
        """
        Why a batch must leave its slot when it is delivered; None if it need not.

        Args:
            stays: False if it is copied on: few slots or bytes are no reason then, because they
                come back by themselves once its copies are done.
        """
        if self._figures.is_time_to_look():
            self._look_at_memory()
        if not stays:
            return Spill.KEPT_BY_WORKER if self._figures.is_kept(slot) else None
        # Nearly always, and this runs for each batch.
        return None if self._figures.has_plenty(slot, self.reserve) else self._shortage(slot)

    def _shortage(self, slot: int) -> Spill | None:
        figures = self._figures
        if figures.is_kept(slot):
            # The trainer may work in place, and the worker's copy must not change.
            return Spill.KEPT_BY_WORKER
        if figures.is_cyclic(slot):
            return None if self._has_plenty_once_collected(slot) else Spill.CYCLIC
        if figures.idle_slots() <= self.reserve and not (self._grows and self._grow()):
            return Spill.TOO_FEW_SLOTS
        if figures.wanting or not self._leaves_the_reserve(figures.pages_bytes(slot) + 1):
            return Spill.TOO_FEW_BYTES
        return None

    def _has_plenty_once_collected(self, slot: int) -> bool:
        """Returns True if the batch may stay, now that those before it are collected."""
        if not gc.isenabled():
            return False  # the program collects when it wants to
        # Not the old generation, which takes long: of the last batches there are few in it.
        for generation in (0, 1):
            gc.collect(generation)
            if self._figures.has_plenty(slot, self.reserve):
                return True
        return False

    def _grow(self) -> bool:
        """Put one slot more into use. Returns True if there is one more now."""
        if not self._ledger.grow():
            return False
        if log.is_heard():
            counts = self._figures.counts()
            slots = sum(counts.values()) - counts["spare"]
            name, held = self._pool.name, counts["leased"]
            log.tell("%s: batches are dropped late: %d slots now, %d held", name, slots, held)
        return True

    def make_room(self) -> None:
        """Give back all pages that wait for later batches, of this loader and of all others."""
        self._pool.rest_ledger(self._ledger, "memory is short", keeps_pages=False)
        account().end_shortage(self._pool)

    def waited_in_vain(self, ticket: int) -> bool:
        """Returns True if the oldest batch is short of memory for so long that it is refused."""
        now = time.monotonic()
        was_away = now - self._short_seen > policy.AWAY_S
        if self._short_ticket != ticket or was_away:
            self._short_ticket, self._short_since = ticket, now
        self._short_seen = now
        return now - self._short_since > policy.SHORTAGE_S

    def _look_at_memory(self) -> None:
        """Where memory is short, keep fewer pages for later, here and in idle segments."""
        available_bytes = limits.available_bytes()
        resident_bytes, before_bytes = self._figures.resident_bytes, self._seen_bytes
        if abs(resident_bytes - before_bytes) >= log.NOTABLE_BYTES:
            self._seen_bytes = resident_bytes
            name, available_mb = self._pool.name, (available_bytes or 0) / 1e6
            log.tell(
                "%s: from %.1f to %.1f MB resident within the epoch, %.1f MB of memory available",
                name,
                before_bytes / 1e6,
                resident_bytes / 1e6,
                available_mb,
            )
        if available_bytes is not None:
            # Samples are made in private memory: as much as batches lately needed is left to them.
            spare_bytes = max(0, available_bytes - self._figures.peak_bytes)
            self._ledger.slack_bytes = spare_bytes // policy.SLACK_PART
            account().make_room(self._pool, available_bytes)

    def _leaves_the_reserve(self, batch_bytes: int) -> bool:
        """Returns True if the workers have bytes enough without those of a batch."""
        left_bytes = self._ring_bytes - self._figures.kept_bytes
        others = policy.reserved_batches(self._ring_bytes, batch_bytes, self.reserve)
        return (1 + others) * batch_bytes <= left_bytes

    def can_ever_fit(self, want_bytes: int) -> bool:
        """Returns True if a batch of that size fits the budget and a slot's range."""
        return want_bytes <= min(self._ring_bytes, self._figures.range_bytes)

    def fits(self, slot: int, want_bytes: int) -> bool:
        """Returns True if the budget has room for that grant; free slots give up pages for it."""
        return self._ledger.room(slot, want_bytes) >= want_bytes

    def note_spill(self, reason: Spill) -> None:
        """Count a spill; several of them for want of room are worth advice, once."""
        self._pool.spills[reason.label] += 1
        self.spills[reason.label] += 1
        times = self.spills[reason.label]
        together = self._pool.spills.total() - self._pool.spills[Spill.CYCLIC.label]
        # Told the first time, the second, the fourth, the eighth: a loop may spill every batch.
        if times & (times - 1) == 0 and log.is_heard():
            name, cure = self._pool.name, self._cure(reason)
            log.tell("%s: batch spilled, number %d because %s", name, times, cure)
        if together != policy.WARN_AFTER_SPILLS or reason is Spill.CYCLIC:
            return
        cure = self._cure(reason)
        # Kept for the next next(): a warning may be an error, which must not cost this batch.
        self._pool.advice = (
            f"{together} batches were copied out of their slots, the last because "
            f"{cure}. Only the time of a copy is lost: what you keep of them takes as much memory "
            "as it weighs."
        )

    def _cure(self, reason: Spill) -> str:
        forked = self._figures.counts()["forked"]
        if reason is Spill.TOO_FEW_SLOTS and forked > 0:
            reason = Spill.FOR_CHILDREN
        text = f"{reason.why}: {reason.cure}"
        return text.format(slots=self._slots, ring_bytes=self._ring_bytes, forked=forked)

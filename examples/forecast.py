"""
What will stay in memory and which batches will spill, computed before anything runs.

The trainer decides by memory/policy.py; so does this, for batches of about one size, as long as
there is memory. How far the workers are at one moment is not known beforehand, so numbers that
depend on it are pairs: the least and the most.
"""

import mmap
from collections import deque
from dataclasses import dataclass, replace

from shmloader.memory import limits, policy
from shmloader.memory.segment import Shape, first_shape, shape_of
from shmloader.stats.records import Spill

_LAYOUT_BYTES = 256  # of a batch of few leaves, with the gap before it

Pair = tuple[int, int]


@dataclass(frozen=True)
class Habits:
    """
    What a loop and its workers do with batches.

    Attributes:
        held: Batches of which something is alive at once, the newest included: 1 if each is dropped
            before the next is asked for, 2 with a loop variable, n + 1 with a list of the last n.
            With as many as the epoch has, all are kept for good.
        kept_part: The part of its batch that is kept, if its other leaves are dropped before the
            next batch is asked for.
        worker_keeps: True if workers keep an alias of what they collate, as in a cache.
        varies: True if of the last 16 batches four or more are less than half of the largest.
    """

    held: int = 2
    kept_part: float = 1.0
    worker_keeps: bool = False
    varies: bool = False


@dataclass(frozen=True)
class Forecast:
    """
    What one epoch leaves in memory, and how many batches it spills.

    Attributes:
        slots: How many are in use at first; reserved: so many of them cannot be held.
        holdable: Batches that stay in their slots at once, at first.
        spilled: Batches that are copied out of their slots.
        reasons: Why, by the names in `stats().spills`; there may be fewer.
        running_bytes: Pages of slots at their peak within the epoch.
        waiting_bytes: Pages that wait for the next epoch, once nothing of this one is held.
        held_bytes: Pages that go, or wait, only when the batches held at the epoch's end are
            dropped.
        error: Why no batch of this size can be made, if none can.
    """

    slots: int
    reserved: int
    holdable: int
    spilled: Pair = (0, 0)
    reasons: tuple[str, ...] = ()
    running_bytes: Pair = (0, 0)
    waiting_bytes: Pair = (0, 0)
    held_bytes: Pair = (0, 0)
    error: str | None = None


def forecast(
    batch_bytes: int,
    batches: int,
    num_workers: int,
    prefetch_factor: int = 2,
    *,
    slots: int | None = None,
    slot_bytes: int | None = None,
    ring_bytes: int | None = None,
    keep_pages: bool = True,
    habits: Habits | None = None,
) -> Forecast:
    """
    Compute what one epoch does to memory, under the limits of this process.

    Args:
        batch_bytes: Of a batch's tensors and arrays; of the largest one, if sizes vary.
        batches: In an epoch.
        slots, slot_bytes, ring_bytes, keep_pages: As for `DataLoader`.
        habits: By default those of a plain `for` loop.
    """
    wanted = shape_of(num_workers, prefetch_factor, slots, slot_bytes, ring_bytes)
    habits = habits or Habits()
    epoch = _Epoch(
        shape=first_shape(*wanted.wanted, wanted.fewest, wanted.enough_bytes),
        habits=habits,
        batches=batches,
        in_flight=num_workers * prefetch_factor,
        least_bytes=_pages(max(batch_bytes + _LAYOUT_BYTES, slot_bytes or 0)),
        kept_part=1.0 if batch_bytes <= policy.SHARED_BYTES else habits.kept_part,
        is_small=batch_bytes <= policy.SHARED_BYTES,
        grows=slots is None,
    )
    return epoch.forecast(keep_pages)


def _pages(size_bytes: int) -> int:
    return -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


class _Loop:
    """
    A loop that holds its last batches, and which of them stay in slots.

    Attributes:
        too_few_slots, too_few_bytes: Batches that spilled, by reason.
        most_slots: In use at once, those on their way among them.
        most_held: In slots at once.
        left: In slots at the end.
    """

    def __init__(self, epoch: "_Epoch", batches: int) -> None:
        """Deliver so many batches."""
        self._epoch = epoch
        self._batches = batches
        self._slots, self._spare = epoch.shape.slots, epoch.spare
        self._to_lend = epoch.shape.spares - epoch.shape.spares // policy.RETIRED_PART
        self._late = 0
        self._views: deque[int] = deque()
        self.too_few_slots = self.too_few_bytes = self.most_held = 0
        self.most_slots = min(epoch.in_flight, self._slots, batches)
        for number in range(batches):
            self._drop_before(number)
            self._deliver(number)
        self.left = sum(1 for number in self._views if number > batches - epoch.holds)

    @property
    def spilled(self) -> int:
        return self.too_few_slots + self.too_few_bytes

    def _drop_before(self, number: int) -> None:
        newest = min(number - 1 + self._epoch.in_flight, self._batches - 1)
        while self._views and self._views[0] <= number - self._epoch.holds:
            since = newest - self._views.popleft()
            self._late += self._slots <= since < policy.LATE_ROUNDS * self._slots

    def _deliver(self, number: int) -> None:
        leased = len(self._views) + 1
        if leased > self._epoch.whole_slots:
            pass  # what is kept of it is moved, and its slot comes back before the next
        elif leased > self._spare and not self._grow():
            self.too_few_slots += 1
            leased -= 1
        elif leased > self._epoch.within_bytes:
            self.too_few_bytes += 1
            leased -= 1
        else:
            self._views.append(number)
        coming = min(self._epoch.in_flight, self._slots - leased, self._batches - 1 - number)
        self.most_slots = max(self.most_slots, leased + coming)
        self.most_held = max(self.most_held, leased)

    def _grow(self) -> bool:
        if not self._epoch.grows or self._late < policy.COMEBACKS_TO_GROW or self._to_lend == 0:
            return False
        self._slots, self._spare = self._slots + 1, self._spare + 1
        self._to_lend, self._late = self._to_lend - 1, 0
        return True


@dataclass(frozen=True)
class _Epoch:
    """An epoch that has not begun; `least_bytes` are the pages of one batch, at least."""

    shape: Shape
    habits: Habits
    batches: int
    in_flight: int
    least_bytes: int
    kept_part: float
    is_small: bool  # in one piece, and copied out unsaid
    grows: bool

    def forecast(self, keep_pages: bool) -> Forecast:
        made = Forecast(self.shape.slots, self.reserved, self.holdable)
        error = self.error()
        if error is not None:
            return replace(made, holdable=0, error=error)
        loop = _Loop(self, self.batches)
        waits = keep_pages and not self.habits.varies and not self.habits.worker_keeps
        return replace(
            made,
            spilled=self.spilled(loop),
            reasons=self.reasons(loop),
            running_bytes=self.running(loop),
            waiting_bytes=self.waiting(loop) if waits else (0, 0),
            held_bytes=self.held(loop),
        )

    # Pages

    @property
    def most_bytes(self) -> int:
        """Pages of one batch, if they came for one leaf after the other."""
        return self.least_bytes + _pages(self.least_bytes // policy.GROWN_PART)

    def between(self, fewest: int, most: int) -> Pair:
        """Bytes of so many slots; where bytes are short, all that may be is one batch beyond."""
        bound = self.shape.ring_bytes + self.most_bytes
        return min(fewest * self.least_bytes, bound), min(most * self.most_bytes, bound)

    @property
    def asks(self) -> bool:
        """
        True if a batch is more than a slot's part of ring_bytes, so that workers ask for more.

        Pages of free slots go then, as far as there is no other room.
        """
        return self.most_bytes > self.shape.ring_bytes // self.shape.slots

    def is_tight(self, loop: _Loop) -> bool:
        """Returns True if ring_bytes may not hold all that is in use at once."""
        return loop.most_slots * self.most_bytes > self.shape.ring_bytes

    def running(self, loop: _Loop) -> Pair:
        if self.habits.varies:
            return self.between(1, loop.most_slots)
        if self.habits.worker_keeps:
            return self.between(self.retired[0], self.retired[1] + loop.most_slots)
        return self.between(loop.most_held if self.asks else loop.most_slots, loop.most_slots)

    def waiting(self, loop: _Loop) -> Pair:
        return self.between(0 if self.asks else loop.most_slots, loop.most_slots)

    def held(self, loop: _Loop) -> Pair:
        if self.habits.varies:
            return self.between(0, loop.left)
        if self.habits.worker_keeps:
            # Retired slots go with their segment, which goes with the last batch of it.
            return self.between(0, loop.left + self.retired[1] if loop.left else 0)
        return self.between(loop.left, loop.left)

    def error(self) -> str | None:
        """Why no slot can ever have the pages of one batch; None if it can."""
        megabytes = f"a batch needs {self.least_bytes / 1e6:.1f} MB"
        if self.least_bytes > self.shape.ring_bytes:
            return f"{megabytes}, ring_bytes is {self.shape.ring_bytes / 1e6:.1f} MB"
        if self.least_bytes > self.shape.range_bytes:
            reason = f" because {self.shape.bound}" if self.shape.bound else ""
            return f"{megabytes}, a slot may have {self.shape.range_bytes / 1e6:.1f} MB{reason}"
        available = limits.available()
        if available is not None and self.least_bytes > available.bytes:
            return f"{megabytes}, {available.bytes / 1e6:.1f} MB are left {available.where}"
        return None

    # Slots

    @property
    def reserved(self) -> int:
        return policy.reserved_slots(self.in_flight, self.shape.workers, self.shape.slots)

    @property
    def spare(self) -> int:
        """Slots that can be held."""
        return self.shape.slots - self.reserved

    @property
    def within_bytes(self) -> int:
        """Batches that can be held until the next one would take the bytes of the reserve."""
        ring_bytes, more = self.shape.ring_bytes, self.least_bytes + 1
        others = policy.reserved_batches(ring_bytes, more, self.reserved)
        return max(0, (ring_bytes - (1 + others) * more) // self.least_bytes + 1)

    @property
    def holdable(self) -> int:
        return min(self.spare, self.within_bytes)

    @property
    def retired(self) -> Pair:
        """Slots retired in the epoch: the order to collate elsewhere comes after a part of them."""
        if not self.habits.worker_keeps:
            return 0, 0
        first = policy.most_retired(self.shape.slots, self.shape.spares) + 1
        return min(first, self.batches), min(first + self.in_flight, self.batches)

    @property
    def holds(self) -> int:
        """Batches that hold their slots at once, if there are slots enough."""
        return self.habits.held if self.kept_part * policy.MOVED_PART > 1 else 1

    @property
    def whole_slots(self) -> int:
        """Slots that kept leaves may hold: they leave the last ones, unless they are most of it."""
        scarce = policy.scarce_slots(self.shape.slots, self.reserved)
        is_moved = scarce > 0 and self.kept_part * policy.MOVED_OF_LAST_PART <= 1
        return self.shape.slots - scarce if is_moved else self.batches

    def spilled(self, loop: _Loop) -> Pair:
        if self.is_small:
            return 0, 0
        if self.habits.worker_keeps:
            first, last = self.retired
            return first, last + _Loop(self, self.batches - first).spilled
        if self.is_tight(loop):
            # A batch that gave way to an earlier one takes no bytes from later ones.
            keeps_all = self.habits.held >= self.batches
            return loop.spilled if keeps_all else 0, self.batches
        return loop.spilled, loop.spilled

    def reasons(self, loop: _Loop) -> tuple[str, ...]:
        found: list[Spill] = []
        if self.is_small:
            return ()
        if self.habits.worker_keeps:
            found.append(Spill.KEPT_BY_WORKER)
        if loop.too_few_slots:
            found.append(Spill.TOO_FEW_SLOTS)
        if loop.too_few_bytes or self.is_tight(loop):
            found += [Spill.TOO_FEW_BYTES, Spill.FOR_AN_EARLIER_BATCH]
        return tuple(reason.label for reason in found)

"""
What a loader without workers needs of the core, in Python: for systems where it cannot be built.

Each name does what the compiled one does, to the bit: a state that was saved with one is loaded
with the other. A test holds them against each other.
"""

import copy
import hashlib
import marshal
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch

_CHUNK = 4096  # requests that are replayed before the caller is asked again

_MASK = (1 << 64) - 1
_POSITIVE = (1 << 63) - 1
_FIRST_FACTOR, _SECOND_FACTOR = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_STRIDE = 0x9E3779B97F4A7C15


def is_plain(value: Any) -> bool:
    """Returns True for a plain strided CPU tensor that needs no gradient and is no lazy view."""
    return (
        type(value) is torch.Tensor
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and not (value.requires_grad or value.is_conj() or value.is_neg())
    )


class Samples:
    """The indices of a batch for torch's fetcher, which takes one and then fetches its sample."""

    def __init__(self, indices: list[Any]) -> None:
        """Note the samples of a batch."""
        self._indices = indices
        self.position = 0

    def __len__(self) -> int:
        return len(self._indices)

    def __iter__(self) -> "Samples":
        self.position = 0
        return self

    def __next__(self) -> Any:
        if self.position >= len(self._indices):
            raise StopIteration
        self.position += 1
        return self._indices[self.position - 1]


# What was delivered


def _mix(word: int) -> int:
    word = (word ^ (word >> 30)) * _FIRST_FACTOR & _MASK
    word = (word ^ (word >> 27)) * _SECOND_FACTOR & _MASK
    return word ^ (word >> 31)


def _sum_numbers(numbers: list[int]) -> int:
    with numpy.errstate(over="ignore"):
        words = numpy.array(numbers, numpy.int64).view(numpy.uint64)
        words = words + numpy.arange(1, len(words) + 1, dtype=numpy.uint64) * numpy.uint64(_STRIDE)
        words = (words ^ (words >> numpy.uint64(29))) * numpy.uint64(_FIRST_FACTOR)
        words = words ^ (words >> numpy.uint64(32))
        return (len(words) + int(words.sum(dtype=numpy.uint64))) & _MASK


def _fits(number: Any) -> bool:
    return type(number) is int and -(1 << 63) <= number < 1 << 63


def _sum_request(index: Any) -> int:
    """A checksum of a request; 0 for what has no value that can be compared in another process."""
    if type(index) is list and all(map(_fits, index)):
        return _sum_numbers(index)
    if _fits(index):
        return _sum_numbers([index])
    try:
        # Version 2 writes values alone: not which objects are one, nor which strings are interned.
        digest = hashlib.blake2b(marshal.dumps(index, 2), digest_size=8).digest()
    except Exception:
        return 0
    return int.from_bytes(digest, "little")


def _sum_batch(request: int, number: int) -> int:
    return _mix((request + number * _STRIDE) & _MASK)


class Delivered:
    """The batches of one epoch that were delivered; the compiled class says what each name is."""

    def __init__(
        self,
        workers: int,
        is_numbered: bool,
        gaps: list[int] | None = None,
        base: int = 0,
        by_worker: list[int] | None = None,
        last_worker: int = -1,
    ) -> None:
        """Begin an epoch, or go on in one."""
        self._is_numbered = is_numbered
        self._gaps = [] if gaps is None else gaps
        self._base = self.high = base
        self.low = self._gaps[0] if self._gaps else base
        self._early = set(range(self.low, base)).difference(self._gaps)
        self.by_worker = [0] * max(workers, 1) if by_worker is None else list(by_worker)
        self.count = base - len(self._gaps) if is_numbered else sum(self.by_worker)
        self.snapshots: list[bytes | None] = [None] * max(workers, 1)
        self.last_worker = last_worker
        self.sampler: bytes | None = None
        self.sampler_at = 0
        self._sum_then = self._sum = self._drawn_sum = 0
        self._sums: dict[int, int] = {}
        self._states: dict[int, tuple[bytes, int]] = {}
        self.drawn_task = -1
        self._last: _Last | None = None
        self._last_sum = 0

    @property
    def checksum(self) -> int:
        """Of the indices of all batches delivered, as an int of 63 bits."""
        return self._sum & _POSITIVE

    @property
    def sampler_sum(self) -> int:
        """The checksum of what the sampler had drawn in the state that is noted."""
        return self._sum_then & _POSITIVE

    def start(self, sampler: bytes | None, at: int = 0, checksum: int = 0) -> None:
        """Note the state of the sampler when it had drawn so many batches, with this checksum."""
        self.sampler, self.sampler_at, self._sum_then = sampler, at, checksum

    def trust(self, checksum: int) -> None:
        """Take over the checksum of what was delivered before."""
        self._sum = self._drawn_sum = checksum

    def number_of(self, task: int) -> int:
        """The number of a batch in its epoch."""
        gaps = len(self._gaps)
        return self._gaps[task] if task < gaps else self._base + task - gaps

    def draw(self, task: int, index: Any, state: bytes | None = None) -> None:
        """Note what was drawn for a task, and the sampler's state after it."""
        if self._is_numbered:
            number, request = self.number_of(task), _sum_request(index)
            self._sums[task] = request
            self._drawn_sum = (self._drawn_sum + _sum_batch(request, number)) & _MASK
            if state is not None and task >= len(self._gaps):
                self._states[number] = state, self._drawn_sum

    def draw_in_hand(self, requests: Iterator[Any], order: Any) -> "InHand":
        """Draw the next request, and take it in hand as if it were its batch."""
        index = next(requests)
        self.drawn_task += 1
        self.draw(self.drawn_task, index, order.noted)
        hand = self.take(self.drawn_task, 0)
        hand.batch = index
        return hand

    def take(
        self, task: int, worker: int, snapshot: bytes | None = None, log: None = None
    ) -> "InHand":
        """Have the batch of a task in hand."""
        hand = InHand()
        hand._delivered, hand._of = self, (task, worker, snapshot)
        return hand

    def _count_batch(self, task: int, worker: int, snapshot: bytes | None) -> None:
        self._last = _Last(self, self.snapshots[worker])
        if self._is_numbered:
            self._count_number(self.number_of(task), self._sums.pop(task, 0))
        self.count += 1
        self.last_worker = worker
        self.by_worker[worker] += 1
        if snapshot is not None:
            self.snapshots[worker] = snapshot

    def _count_number(self, number: int, request: int) -> None:
        self._last_sum = _sum_batch(request, number)
        self._sum = (self._sum + self._last_sum) & _MASK
        if number == self.low:
            self._advance(number + 1)
        else:
            self._early.add(number)
        self.high = max(self.high, number + 1)

    def _advance(self, low: int) -> None:
        while low in self._early:
            self._early.remove(low)
            low += 1
        for number in [number for number in self._states if number < low]:
            self.start(self._states[number][0], number + 1, self._states.pop(number)[1])
        self.low = low

    def before(self) -> "Delivered":
        """Make what this was before the last batch was delivered, to be read alone."""
        last = self._last
        if last is None:
            return self
        made = Delivered(
            len(self.by_worker), self._is_numbered, None, 0, self.by_worker, last.worker
        )
        made.by_worker[self.last_worker] -= 1
        made.count = self.count - 1
        made.snapshots = list(self.snapshots)
        made.snapshots[self.last_worker] = last.snapshot
        made.start(*last.sampler)
        if self._is_numbered:
            made.low, made.high, made._early = last.place
            made._sum = (self._sum - self._last_sum) & _MASK
        return made

    def missing(self) -> list[int]:
        """List the numbers below `high` that were not delivered."""
        return [number for number in range(self.low, self.high) if number not in self._early]


class InHand:
    """A batch that next() has made; as the compiled class, but for an interrupt as it counts."""

    error: BaseException | None = None
    _delivered: Delivered | None = None
    _of: tuple[int, int, bytes | None]

    def __init__(self, batch: Any = None, holder: Any = None, key: Any = None) -> None:
        """Have a batch in hand that does not count."""
        self.batch, self.holder, self.key = batch, holder, key

    def hand_out(self) -> Any:
        """Count it, and return the batch or raise the error."""
        if self.holder is not None:
            del self.holder[self.key]
            self.holder = None
        batch, error = self.batch, self.error
        self.leave_out()
        if error is not None:
            raise error
        return batch

    def leave_out(self) -> None:
        """Count it, although next() goes on to the batch after it."""
        delivered, self._delivered = self._delivered, None
        self.batch = self.error = None
        if delivered is not None:
            delivered._count_batch(*self._of)


class HandsOut:
    """The `__next__` of an iterator whose batches count; the compiled class says what it has."""

    _make: Callable[[], InHand]
    _num_yielded: int

    def __next__(self) -> Any:
        yielded = self._num_yielded
        try:
            hand = self._make()
        except BaseException:
            self._num_yielded = yielded
            raise
        return hand.hand_out()


class _Last:
    """What a delivery replaced."""

    def __init__(self, delivered: Delivered, snapshot: bytes | None) -> None:
        self.worker = delivered.last_worker
        self.snapshot = snapshot
        self.sampler = delivered.sampler, delivered.sampler_at, delivered._sum_then
        early = set(delivered._early)
        self.place = delivered.low, delivered.high, early


def replay(
    requests: Iterator[Any], first: int, high: int, missing: set[int], kept: list[Any]
) -> tuple[int, int]:
    """Draw again what was drawn before; the compiled function says how."""
    number, end, total = first, min(high, first + _CHUNK), 0
    while number < end:
        index = next(requests)
        if number in missing:
            kept.append(copy.copy(index))  # some samplers use one list again
        else:
            total += _sum_batch(_sum_request(index), number)
        number += 1
    return number, total & _MASK

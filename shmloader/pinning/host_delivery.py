"""Delivery into host memory: from its slot, through a function, or pinned."""

import functools
import math
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import pin_memory as torch_pin_memory

from shmloader.core import Answer, Kind
from shmloader.errors import attempt, is_own, warn
from shmloader.memory import page_locks, policy
from shmloader.memory.page_locks import PageLocks
from shmloader.memory.segment_pool import SegmentPool
from shmloader.pinning import captures, pinned_slots
from shmloader.pinning.pinned_slots import EachApart, pin
from shmloader.transport.delivery import (
    Delivery,
    Failure,
    PinningFailed,
    ordinary_tensors,
    transformed,
)
from shmloader.transport.received import Received
from shmloader.transport.transport import Transport


class PlainDelivery(Delivery):
    """Delivers batches where they lie, or what a function makes of each in host memory."""

    def __init__(self, received: Received, transform: Callable[[Any], Any] | None = None) -> None:
        self.deliver = received.deliver
        if transform is not None:
            self.deliver = functools.partial(_through, received, transform)
        self._ledger = received.ledger

    def look(self) -> None:
        """See to slots that are page-locked: of dropped loaders, or since this one pinned."""
        page_locks.look(self._ledger)

    def waiting(self) -> float:
        """See to them while a slot may be wanted. Returns seconds to park."""
        locks = page_locks.look(self._ledger)
        return math.inf if locks is None or not locks.ledger.awaits_copies else policy.FENCE_LOOK_S


def _through(received: Received, transform: Callable[[Any], Any], answer: Answer) -> Any:
    batch = received.deliver(answer)
    if isinstance(batch, ExceptionWrapper):
        return batch
    made, error = attempt(functools.partial(transformed, batch, transform))
    return made if error is None else Failure(error)


class LockedDelivery(Delivery):
    """What every delivery does whose slots are page-locked, because devices read them."""

    # Tells the user of what went wrong with them; it may raise.
    warn: Callable[[str], None] = staticmethod(warn)

    def __init__(self, transport: Transport, pool: SegmentPool, *, can_lock: bool = True) -> None:
        """
        Have slots locked as they are delivered, from the first `look` on.

        Args:
            can_lock: False: none can be.
        """
        self._requests = transport.requests
        self._locks = page_locks.over(transport.ledger, pool.name, pool.copying)
        transport.received.in_place = self._locks
        self._is_undecided = can_lock and pinned_slots.is_to_lock()
        captures.announce()

    def look(self) -> None:
        """Free the slots whose copies are done, and say what went wrong with them."""
        page_locks.look_at_idle()
        if self._is_undecided:
            self._is_undecided, self._locks.may_lock_any = False, pinned_slots.may_lock()
        self._locks.look()
        complaint = self._locks.complaint()
        if complaint is not None:
            self.warn(complaint)

    def waiting(self) -> float:
        """Free the slots whose copies end. Returns seconds to park, 0 if there was one."""
        ledger = self._locks.ledger
        idle = ledger.idle
        if not ledger.awaits_copies:
            return math.inf
        self._locks.look()
        if ledger.idle > idle:
            return 0.0
        return policy.FENCE_LOOK_S if self._requests.lacks_room else math.inf


class PinnedDelivery(LockedDelivery):
    """Delivers batches in pinned memory, as torch's loader does: in their slots, if they may."""

    def __init__(self, transport: Transport, pool: SegmentPool, device: str | None = None) -> None:
        """Count in pool.copying, its time too; device: torch's `pin_memory_device`."""
        super().__init__(transport, pool)
        received = transport.received
        received.mover = pin
        self.deliver = functools.partial(_pinned, received, self._locks, device, pool.copying)


def _pinned(
    received: Received,
    locks: PageLocks,
    device: str | None,
    counts: "Counter[str]",
    answer: Answer,
) -> Any:
    began = time.perf_counter_ns()
    was_copied = not answer.in_slot  # to make room for an earlier one
    # A tensor that a pickle refers to twice is one, which torch pins twice.
    is_of_pickle = was_copied or received.ledger.is_pickled(answer.slot)
    with captures.undisturbed(), ordinary_tensors():
        batch = received.deliver(answer)
        if answer.kind is not Kind.ERROR and not isinstance(batch, ExceptionWrapper):
            counts["pinned" if was_copied else locks.way] += 1
            batch = (_each_apart if is_of_pickle else _pinned_by_torch)(batch, device)
    counts["copy_ns"] += time.perf_counter_ns() - began
    return batch


def _each_apart(batch: Any, device: str | None) -> Any:
    mode = EachApart()
    try:
        with mode:
            return _pinned_by_torch(batch, device)
    finally:
        mode.end()


def _pinned_by_torch(batch: Any, device: str | None) -> Any:
    """Have torch pin what is not pinned yet: what `pin` could not, and objects of users."""
    call = functools.partial(torch_pin_memory.pin_memory, batch, device)
    try:
        return call()
    except BaseException as error:
        if not is_own(error, call):
            raise
        index = torch.accelerator.current_device_index()
        return PinningFailed(where=f"in pin memory thread for device {index}")  # type: ignore[no-untyped-call]

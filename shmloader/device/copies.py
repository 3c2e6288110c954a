"""
Batches on their way to a device: copies ahead of the step, and the leases that end after them.

Key invariant: what a copy reads stays as it is until an event after that copy is done. A flight is
listed before its first copy is issued, and each source is noted before its copy. So an interrupt at
any line leaves a flight that is listed with all that it reads; if it came before the event was
recorded, a later one is recorded in its place, after all copies that were issued before. A flight
lands, and with it the lease of its slot ends, when its event is done, and in no other way.

A flight whose event cannot be asked any more, as a copy failed, never lands: the device may still
read its slot. So the slot is not used again, and its memory is neither freed nor unregistered.

No view of a slot reaches the user: what is copied are the plain tensors of the batch's containers,
and the decoder copies all other leaves out.
"""

import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch._utils import ExceptionWrapper

from shmloader import log
from shmloader.core import Lent, copy_tensor
from shmloader.device.backend import Backend
from shmloader.device.blocks import BLOCK_BYTES, Blocks
from shmloader.device.registry import Registry
from shmloader.device.walk import tensors_in
from shmloader.errors import warn
from shmloader.way_out import ordinary_tensors, transformed

_LAND_S = 10.0  # how long the end of an iterator waits for its copies
_LOOK_S = 0.0005  # between two looks meanwhile

# Copies that failed or never finished, with all that they read: it stays until the process ends.
_abandoned: list["Copies"] = []


class Flight:
    """
    One batch on its way.

    Attributes:
        lent: Its slot, once nothing has to be decoded again.
        batch: With its tensors on the device; None until all copies are issued.
        error: What kept it from that; None: nothing did.
        reads, hosts: What its copies read; blocks of small leaves apart, because they are used
            again.
        writes: What is written on the stream of copies and used on another one later.
        copied: The event after its copies; None if an interrupt came before it was recorded.
        ready: The event after all that must be done before the batch is used.
    """

    __slots__ = ("batch", "copied", "error", "hosts", "lent", "reads", "ready", "writes")

    def __init__(self) -> None:
        self.lent: Lent | None = None
        self.batch: Any = None
        self.error: Exception | None = None
        self.reads: list[torch.Tensor] = []
        self.hosts: list[torch.Tensor] = []
        self.writes: list[torch.Tensor] = []
        self.copied: Any = None
        self.ready: Any = None

    def land(self, spare: list[torch.Tensor]) -> None:
        """Let go of what the copies read, and note the spare blocks: they are done."""
        while self.hosts:
            spare.append(self.hosts.pop())
        self.reads.clear()
        if self.lent is not None:
            self.lent.end()
            self.lent = None


class Copies:
    """
    The copies of one iterator.

    Attributes:
        ahead: How many batches may be on their way, or there, before they are asked for.
        in_order: True if they will be asked for in the sampler's order; False: as they come.
        registry: The slots that the device reads in place.
    """

    def __init__(
        self,
        backend: Backend,
        registry: Registry,
        counts: "Counter[str]",
        *,
        ahead: int,
        in_order: bool = True,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        """
        Have nothing on its way.

        Args:
            counts: Of the loader's life: batches that were copied `direct` from their slots or
                `staged` through pinned memory, and the trainer's nanoseconds for that, `ns`.
            transform: Called on each batch on the device, on the stream of copies.
        """
        self.ahead = ahead
        self.in_order = in_order
        self.registry = registry
        self._backend = backend
        self._counts = counts
        self._transform = transform
        self._flying: list[Flight] = []
        self._lost: list[Flight] = []
        self._spare: list[torch.Tensor] = []  # blocks in pinned memory
        self._error: Exception | None = None  # of a copy whose batch was handed out already

    @property
    def in_flight(self) -> int:
        """Number of batches whose copies are not known to be done."""
        return len(self._flying)

    def look(self) -> None:
        """
        End what is done, before a batch is in hand that an error or a warning would lose.

        Raises:
            RuntimeError: The current stream records a graph: nothing may be started or asked.
        """
        if self._backend.is_capturing():
            raise RuntimeError(
                "a batch was asked for while a graph is captured, in which no copy can be: take it "
                "before, and copy it into the graph's own input"
            )
        self.poll()
        complaint, self.registry.complaint = self.registry.complaint, None
        if complaint is not None:
            warn(complaint)

    def start(self, into: Any) -> Flight:
        """
        Issue the copies of a batch. An error of them is the flight's, and raised at its turn.

        Args:
            into: Its attribute `batch` is the `Lent`, and becomes the flight in the end, so that
                all can be done again after an interrupt.
        """
        began = time.perf_counter_ns()
        lent, flight = into.batch, Flight()
        self._flying.append(flight)
        is_direct = False
        try:
            before = None if self._transform is None else self._backend.mark()
            with ordinary_tensors(), self._backend.copying():
                is_direct = self.registry.holds(lent)
                self._issue(flight, lent, is_direct, before)
        except Exception as error:
            flight.error = error
        into.batch = flight
        if is_direct:
            flight.lent = lent
        else:
            lent.end()  # all that is read now is pinned memory
        self._counts["ns"] += time.perf_counter_ns() - began
        return flight

    def _issue(self, flight: Flight, lent: Lent, is_direct: bool, before: Any) -> None:
        try:
            batch = self._decode(flight, lent, is_direct)
        except Exception as error:
            # Its frames hold views of the slot, and the user may keep it.
            traceback.clear_frames(error.__traceback__)
            raise
        finally:
            flight.copied = flight.ready = self._backend.record()
        if isinstance(batch, ExceptionWrapper):
            flight.batch = batch
            return
        self._counts["direct" if is_direct else "staged"] += 1
        if self._transform is not None:
            # What it reads besides the batch may have been made by the caller's stream just now.
            self._backend.follow(before)
            batch = transformed(batch, self._transform)
            # What else was written is used on the stream of copies alone.
            flight.writes = list(tensors_in(batch, self._backend.device))
            flight.ready = self._backend.record()
        flight.batch = batch

    def _decode(self, flight: Flight, lent: Lent, is_direct: bool) -> Any:
        """Make the batch of a slot, with the copies of its tensors under way."""
        backend, reads, writes = self._backend, flight.reads, flight.writes
        blocks = Blocks(backend, flight.hosts, self._spare, writes)

        def move(leaf: torch.Tensor) -> torch.Tensor:
            if 0 < leaf.nbytes <= BLOCK_BYTES:
                return blocks.put(leaf)
            there = torch.empty_like(leaf, device=backend.device)
            # torch gathers one with gaps into pageable memory, and waits until that was copied.
            can_read = is_direct and leaf.stride() == there.stride()
            source = leaf if can_read else self._staged(leaf)
            reads.append(source)
            writes.append(there)
            backend.copy(there, source)
            return there

        batch = lent.decode(move)
        blocks.send()
        return batch

    def _staged(self, leaf: torch.Tensor) -> torch.Tensor:
        staged = self._backend.pinned(leaf.shape, leaf.stride(), leaf.dtype)
        if not copy_tensor(staged, leaf):
            staged = self._backend.pinned(
                leaf.shape, torch.empty_like(leaf).stride(), leaf.dtype
            ).copy_(leaf)
        return staged

    def hand_out(self, flight: Flight) -> Any:
        """
        Return a batch, for use after the current stream's work so far.

        Raises:
            Exception: What a copy of it, the decoder or the transform raised; or a copy of an
                earlier batch, after that was handed out.
        """
        began = time.perf_counter_ns()
        error = flight.error or self._error
        if error is not None:
            self._error = None
            raise error
        batch, writes = flight.batch, flight.writes
        self._backend.wait(flight.ready, writes)
        flight.batch, flight.writes = None, []
        self._counts["ns"] += time.perf_counter_ns() - began
        return batch

    def end_epoch(self) -> None:
        """
        Say what was learnt of batches that were handed out, after which no other one comes.

        Raises:
            Exception: What a copy of one of them raised.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error from None

    def poll(self) -> None:
        """End the leases of batches whose copies are done."""
        for flight in self._flying[:]:
            if self._has_landed(flight):
                flight.land(self._spare)
                self._flying.remove(flight)

    def _has_landed(self, flight: Flight) -> bool:
        try:
            if flight.copied is None:
                flight.copied = flight.ready = self._backend.record()
            return self._backend.query(flight.copied)
        except Exception as error:
            if flight.batch is None and flight.error is None:
                self._error = error
            flight.error = flight.error or error
            self._lost.append(flight)
            self._flying.remove(flight)
            return False

    def rest(self) -> None:
        """Wait for all copies and unregister all slots, so that their pages can be given back."""
        if self._wait(_LAND_S):
            self.registry.release()

    def close(self) -> bool:
        """
        Wait for all copies and unregister all slots; before the segment goes to another owner.

        While a graph is captured, as where a collection of garbage comes upon an old iterator, the
        accelerator cannot be asked: the capture would fail.

        Returns:
            True if it worked. Otherwise the segment must not be used again, and what the device may
            read stays until the process ends.
        """
        is_done = False
        try:
            if not self._backend.is_capturing():
                is_done = self._wait(_LAND_S) and self.registry.release()
        finally:
            if not is_done:
                log.tell("copies to %s did not end: their memory stays", self._backend.device)
                _abandoned.append(self)
        return is_done

    def _wait(self, timeout_s: float) -> bool:
        """Returns True if all copies are done in time."""
        deadline = time.monotonic() + timeout_s
        self.poll()
        while self._flying and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
            self.poll()
        return not self._flying and not self._lost

"""
Copies of batches to a device, ahead of the step.

Key invariant: what a copy reads stays as it is until it is done. A batch that stays in its slot
was leased for devices, so the slot is written again only behind a fence that comes after all that
was issued before the lease ended (csrc/pinned.c); pinned memory of torch's own waits likewise in
torch's allocator. So nothing is listed here, and an interrupt at any line loses nothing: the copies
of a batch are issued again, from the slot that it is in still.

No view of a slot reaches the user: what is copied are the plain tensors of the batch's containers,
and the decoder copies all others out.
"""

import contextlib
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._utils import ExceptionWrapper

from shmloader.core import Lent, copy_tensor
from shmloader.device.backend import Backend
from shmloader.device.blocks import BLOCK_BYTES, Blocks
from shmloader.device.walk import tensors_in
from shmloader.errors import attempt
from shmloader.transport.delivery import ordinary_tensors, transformed


class Flight:
    """
    One batch on its way.

    Attributes:
        batch: With its tensors on the device; None until all copies are issued.
        error: What kept it from that; None: nothing did.
        writes: What is written on the stream of copies and used on another one later.
        ready: The event after all that must be done before the batch is used.
    """

    __slots__ = ("batch", "error", "ready", "writes")

    def __init__(self) -> None:
        self.batch: Any = None
        self.error: BaseException | None = None
        self.writes: list[torch.Tensor] = []
        self.ready: Any = None


class Copies:
    """The copies of one iterator."""

    def __init__(
        self,
        backend: Backend,
        counts: "Counter[str]",
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        """
        Have nothing on its way.

        Args:
            counts: Of the loader's life: batches that were copied `direct` from their slots or
                `staged` through pinned memory, and the trainer's nanoseconds for that, `copy_ns`.
            transform: Called on each batch on the device, on the stream of copies.
        """
        self._backend = backend
        self._counts = counts
        self._transform = transform

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Count the time inside as that of copies."""
        began = time.perf_counter_ns()
        try:
            yield
        finally:
            self._counts["copy_ns"] += time.perf_counter_ns() - began

    def start(self, into: Any) -> None:
        """
        Issue the copies of a batch. An error of them is the flight's, and raised at its turn.

        Args:
            into: Its attribute `batch` is the `Lent`, and becomes the flight in the end, so that
                all can be done again after an interrupt.
        """
        lent, flight = into.batch, Flight()

        def issue() -> None:
            before = None if self._transform is None else self._backend.mark()
            with ordinary_tensors(), self._backend.copying():
                self._issue(flight, lent, before)

        with self.timed():
            _, flight.error = attempt(issue)
            into.batch = flight
            lent.end()  # behind all that was issued from it

    def _issue(self, flight: Flight, lent: Lent, before: Any) -> None:
        try:
            batch = self._decode(flight, lent)
        except Exception as error:
            # Its frames hold views of the slot, and the user may keep it.
            traceback.clear_frames(error.__traceback__)
            raise
        if not isinstance(batch, ExceptionWrapper):
            self._counts["direct" if lent.in_place else "staged"] += 1
            if self._transform is not None:
                # What it reads besides the batch may have been made by the caller's stream just
                # now.
                self._backend.follow(before)
                batch = transformed(batch, self._transform)
                # What else was written is used on the stream of copies alone.
                flight.writes = list(tensors_in(batch, self._backend.device))
            flight.ready = self._backend.record()
        flight.batch = batch

    def _decode(self, flight: Flight, lent: Lent) -> Any:
        """Make the batch of a slot, with the copies of its tensors under way."""
        backend, writes = self._backend, flight.writes
        blocks = Blocks(backend, writes)

        def move(leaf: torch.Tensor) -> torch.Tensor:
            if 0 < leaf.nbytes <= BLOCK_BYTES:
                return blocks.put(leaf)
            there = torch.empty_like(leaf, device=backend.device)
            # torch gathers one with gaps into pageable memory, and waits until that was copied.
            can_read = lent.in_place and leaf.stride() == there.stride()
            writes.append(there)
            backend.copy(there, leaf if can_read else self._staged(leaf))
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

    def hand_out(self, flight: Flight, into: Any) -> None:
        """
        Have a batch used after the current stream's work so far.

        Args:
            into: Its attribute `batch` becomes the flight's.

        Raises:
            Exception: What a copy of it, the decoder or the transform raised.
        """
        if flight.error is not None:
            raise flight.error
        with self.timed():
            if flight.ready is not None:
                self._backend.wait(flight.ready, flight.writes)
            # In one line: no interrupt comes between.
            into.batch, flight.batch, flight.writes = flight.batch, None, []

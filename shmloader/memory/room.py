"""
The room for pages: how many bytes a worker may add to its slot, so that no process is killed.

A memfd has no size limit and a control group kills without an error, so the refusal is ours.
Workers do not see what the others are about to add. Key invariant: what they all add between two
looks is no more than was left at the first one, if they proceed at about the same pace. Each adds
at most its part of what is left, then looks again. When little is left, parts stop shrinking, and
the room for one of each other worker is kept free: less than 32 MiB for any number of workers. So
is room for the private memory that each of them takes besides, above all in its first batches.
"""

import os
from typing import Protocol

from shmloader.errors import BatchTooLarge, OutOfSharedMemory
from shmloader.memory import limits, policy


def reserve_bytes(workers: int) -> int:
    """Count the most that a batch leaves to the other workers of a loader, in bytes."""
    return policy.RESERVE_BYTES + (workers - 1) * policy.PRIVATE_BYTES


class _Shape(Protocol):
    """What is asked of a `memory.segment.Shape`."""

    @property
    def workers(self) -> int: ...
    @property
    def slots(self) -> int: ...
    @property
    def ring_bytes(self) -> int: ...
    @property
    def range_bytes(self) -> int: ...
    @property
    def bound(self) -> str: ...
    def slots_for(self, batch_bytes: int) -> int: ...


class Room:
    """The room that one of a segment's workers finds for its pages."""

    def __init__(self, shape: _Shape) -> None:
        """Share the room with the other workers of a segment of this shape."""
        self._shape = shape
        self._workers = shape.workers
        self._piece_min = policy.RESERVE_BYTES // shape.workers
        self._least: limits.Available | None = None  # at the last look

    def piece(self, needed_bytes: int, wished_bytes: int) -> int:
        """
        Choose how many bytes to add now.

        Args:
            needed_bytes: What the batch in hand lacks.
            wished_bytes: What it lacks and probably will; it is not asked for if room is scarce.

        Returns:
            From 1 to wished_bytes. 0: there is no room for what is needed, or nothing is needed.
        """
        self._least = least = limits.available()
        if least is None:
            return min(wished_bytes, policy.PIECE_MAX_BYTES)
        room = least.bytes - self._reserve(wished_bytes)
        if room < needed_bytes:
            return 0
        part = max(self._piece_min, least.bytes // (policy.SHARES_EACH * self._workers))
        return min(
            wished_bytes if wished_bytes <= room else needed_bytes, part, policy.PIECE_MAX_BYTES
        )

    def is_tight(self, batch_bytes: int, needed_bytes: int) -> bool:
        """
        Returns True if what waits for later batches should go now, though there is room.

        That is if, at the last look, no room was left for as large a sample in each other worker:
        samples are made in private memory, where the kernel kills without an error.
        """
        least = self._least
        others = (self._workers - 1) * batch_bytes
        return least is not None and least.bytes < needed_bytes + others

    def _reserve(self, wished_bytes: int) -> int:
        """Count the bytes that must be left to the other workers."""
        return (self._workers - 1) * (min(wished_bytes, self._piece_min) + policy.PRIVATE_BYTES)

    def too_large(self, batch_bytes: int) -> BatchTooLarge:
        """Make the error for a batch of at least batch_bytes, which no slot can ever hold."""
        shape, batch = self._shape, f"batch of {batch_bytes / 1e6:.1f} MB"
        if batch_bytes > shape.ring_bytes:
            return BatchTooLarge(
                f"{batch} does not fit ring_bytes of {shape.ring_bytes / 1e6:.1f} MB: raise "
                f"ring_bytes to at least {batch_bytes} or lower batch_size"
            )
        batch += f" does not fit a slot's range of {shape.range_bytes / 1e6:.1f} MB"
        if not shape.bound:
            return BatchTooLarge(f"{batch}: lower slots, prefetch_factor or batch_size")
        fitting = shape.slots_for(batch_bytes)
        slots = f"slots from {shape.slots} to {fitting}" if fitting else "batch_size"
        return BatchTooLarge(f"{batch}, because {shape.bound}: raise that limit, or lower {slots}")

    def refusal(self, batch_bytes: int, needed_bytes: int) -> OutOfSharedMemory:
        """Make the error for a batch of at least batch_bytes, which lacks needed_bytes of them."""
        least = self._least
        left = "too few MB are left"
        if least is not None:
            left = f"{least.bytes / 1e6:.1f} MB are left to process {os.getpid()} {least.where}"
        if self._workers > 1:
            reserve = self._reserve(needed_bytes) / 1e6
            left += f", {reserve:.1f} MB of them for the other workers"
        return OutOfSharedMemory(
            f"a batch of {batch_bytes / 1e6:.1f} MB lacks {needed_bytes / 1e6:.1f} MB of shared "
            f"memory, but {left}: lower batch_size, slots, prefetch_factor or num_workers, set "
            "ring_bytes, or raise the memory limit"
        )

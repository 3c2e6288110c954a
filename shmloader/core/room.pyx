# The room for pages: how many bytes a worker may add to its slot, so that no process is killed.
#
# A memfd has no size limit and a control group kills without an error, so the refusal is ours.
# Workers do not see what the others are about to add. Key invariant: what they all add between two
# looks is no more than was left at the first one, if they proceed at about the same pace. Each adds
# at most its part of what is left, then looks again. When little is left, parts stop shrinking, and
# the room for one of each other worker is kept free: less than POLICY_RESERVE_BYTES for any number
# of workers. So is room for the private memory that each of them takes besides, above all in its
# first batches.
#
# The limits are numbers of the segment's shape and of the policy. What is left changes at any time,
# so it is asked for: by a function that returns numbers and knows nothing of this part.

import os

from shmloader.core.remedies import OF_BATCHES
from shmloader.errors import BatchTooLarge, OutOfSharedMemory


@cython.final
cdef class Room:
    """The room that one of a segment's workers finds for its pages."""

    cdef object available      # asked at each look: (bytes, what bounds them), or None: not known
    cdef uint32_t workers      # that share it, at the last look
    cdef uint32_t slots
    cdef uint64_t ring_bytes
    cdef uint64_t range_bytes
    cdef uint64_t ranges_bytes  # of all of them
    cdef str bound             # why ranges are no longer, if a limit is the reason; or ""
    cdef uint8_t *base         # where the segment is mapped that says how many share the room, or
    cdef geometry geometry     # NULL: all of its workers do; and its shape
    cdef object remedies       # what messages say: `Remedies`
    # At the last look.
    cdef bint is_known
    cdef int64_t left_bytes
    cdef str where

    def __init__(self, shape, available, remedies=OF_BATCHES):
        """
        Share the room with the other workers of a segment of this shape.

        Args:
            available: Called at each look: how many bytes this process could take now, and what
                bounds them, in words; None if the system does not say.
            remedies: What messages say.
        """
        self.available = available
        self.workers, self.slots = shape.workers, shape.slots
        self.ring_bytes, self.range_bytes, self.bound = (shape.ring_bytes, shape.range_bytes,
                                                         shape.bound)
        self.ranges_bytes = (self.slots + <uint64_t>shape.spares) * self.range_bytes
        self.remedies = remedies

    cdef void follow(self, uint8_t *base, const geometry *shape) noexcept:
        """From now on as many workers share the room as a mapped segment says."""
        self.base, self.geometry = base, shape[0]

    def piece(self, int64_t needed_bytes, int64_t wished_bytes):
        """
        Choose how many bytes to add now.

        Args:
            needed_bytes: What the batch in hand lacks.
            wished_bytes: What it lacks and probably will; it is not asked for if room is scarce.

        Returns:
            From 1 to wished_bytes. 0: there is no room for what is needed, or nothing is needed.
        """
        cdef int64_t most = <int64_t>POLICY_PIECE_MAX_BYTES
        cdef int64_t room, part
        if self.base != NULL:
            self.workers = segment_sharers(self.base, &self.geometry)
        found = self.available()
        self.is_known = found is not None
        if not self.is_known:
            return min(wished_bytes, most)
        self.left_bytes, self.where = found
        room = self.left_bytes - self.reserve(wished_bytes)
        if room < needed_bytes:
            return 0
        part = self.left_bytes // <int64_t>(POLICY_SHARES_EACH * self.workers)
        part = max(self.piece_min(), part)
        return min(wished_bytes if wished_bytes <= room else needed_bytes, min(part, most))

    cdef bint is_tight(self, int64_t batch_bytes, int64_t needed_bytes) noexcept:
        """
        Returns True if what waits for later batches should go now, though there is room.

        That is if, at the last look, no room was left for as large a sample in each other worker:
        samples are made in private memory, where the kernel kills without an error.
        """
        cdef int64_t others = (<int64_t>self.workers - 1) * batch_bytes
        return self.is_known and self.left_bytes < needed_bytes + others

    cdef int64_t piece_min(self) noexcept:
        """Count the bytes that are kept free for a piece of each other worker, at most."""
        return <int64_t>(POLICY_RESERVE_BYTES // self.workers)

    cdef int64_t reserve(self, int64_t wished_bytes) noexcept:
        """Count the bytes that must be left to the other workers."""
        cdef int64_t each = min(wished_bytes, self.piece_min()) + <int64_t>POLICY_PRIVATE_BYTES
        return (<int64_t>self.workers - 1) * each

    cdef object make_too_large(self, uint64_t batch_bytes):
        """Make the error for a batch of at least batch_bytes, which no slot can ever hold."""
        cdef int64_t fitting
        batch = f"{self.remedies.thing} of {batch_bytes / 1e6:.1f} MB"
        if batch_bytes > self.ring_bytes:
            return BatchTooLarge(
                f"{batch} does not fit ring_bytes of {self.ring_bytes / 1e6:.1f} MB: set "
                f"ring_bytes={batch_bytes} or more, or {self.remedies.smaller}"
            )
        batch += f" does not fit a slot's range of {self.range_bytes / 1e6:.1f} MB"
        if not self.bound:
            return BatchTooLarge(f"{batch}: {self.remedies.fewer}")
        fitting = count_slots(self.ranges_bytes, batch_bytes)
        lower = (f"lower slots from {self.slots} to {fitting}" if fitting
                 else self.remedies.smaller)
        return BatchTooLarge(f"{batch}, because {self.bound}: raise that limit, or {lower}")

    def refusal(self, uint64_t batch_bytes, uint64_t needed_bytes):
        """Make the error for a batch of at least batch_bytes, which lacks needed_bytes of them."""
        left = "too few MB are left"
        if self.is_known:
            left = f"{self.left_bytes / 1e6:.1f} MB are left to process {os.getpid()} {self.where}"
        if self.workers > 1:
            reserve = self.reserve(<int64_t>needed_bytes) / 1e6
            left += f", {reserve:.1f} MB of them for the other workers"
        return OutOfSharedMemory(
            f"a {self.remedies.thing} of {batch_bytes / 1e6:.1f} MB lacks "
            f"{needed_bytes / 1e6:.1f} MB of shared memory, but {left}: {self.remedies.short}"
        )

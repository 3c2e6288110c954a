# How many bytes a worker may add to its slot now, or why none.

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from shmloader.core.csrc cimport geometry, policy


@cython.final
cdef class Room:
    cdef policy policy
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

    cdef void follow(self, uint8_t *base, const geometry *shape) noexcept
    cdef int64_t look_for(self, int64_t needed_bytes, int64_t wished_bytes) except -1
    cdef bint is_tight(self, int64_t batch_bytes, int64_t needed_bytes) noexcept
    cdef int64_t piece_min(self) noexcept
    cdef int64_t reserve(self, int64_t wished_bytes) noexcept
    cdef object make_refusal(self, uint64_t batch_bytes, uint64_t needed_bytes)
    cdef object make_too_large(self, uint64_t batch_bytes)

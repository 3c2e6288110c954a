# The worker's end of a segment.

cimport cython
from libc.stdint cimport int64_t, uint32_t

from shmloader.core.csrc cimport slot_order


@cython.final
@cython.freelist(8)
cdef class Taken:
    cdef uint32_t slot
    cdef slot_order order
    cdef readonly object index    # the request
    cdef readonly tuple numbers   # as the desk's


@cython.final
cdef class Desk:
    cdef SlotMemory memory
    cdef unsigned long thread
    cdef int64_t taken_ns

    cdef readonly tuple numbers   # of the batch in hand: its epoch's, and its own there; or None
    cdef readonly bint is_foretold   # the batch in hand: nobody has asked for it yet

    cdef bint wait_for_order(self, double timeout_s, uint32_t *cell) except -1
    cdef object order_of(self, uint32_t cell)
    cdef object read_seed(self)
    cdef object begin_now(self, uint32_t slot)
    cdef Taken accept(self, uint32_t slot)
    cdef int write_empty(self, int kind) except -1

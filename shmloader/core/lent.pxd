# A batch that is leased and not decoded yet.

cimport cython
from libc.stdint cimport uint32_t, uint64_t

from shmloader.core.csrc cimport lease


@cython.final
cdef class Lent:
    cdef Places places
    cdef lease *held            # one alias of the slot; NULL: it was copied out, or has ended
    cdef bytes layout
    cdef bint is_open           # the places are filled in
    cdef readonly uint32_t slot
    cdef readonly uint64_t ticket
    cdef readonly uint64_t payload_bytes
    cdef readonly bint in_slot

    cdef void let_go(self) noexcept

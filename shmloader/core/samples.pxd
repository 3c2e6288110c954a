# The samples of the batch in hand, one by one.

cimport cython
from libc.stdint cimport uint32_t


@cython.final
cdef class Samples:
    cdef SlotMemory memory        # None: nobody is shown them
    cdef list indices
    cdef readonly uint32_t position

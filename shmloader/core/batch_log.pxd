# What the trainer and its workers did lately.

cimport cython


@cython.final
cdef class BatchLog:
    cdef Ledger ledger
    cdef bint is_closed   # the segment may be another iterator's: nothing is noted any more

# The indices of an epoch as numbers side by side, and the stretch of them that is one request.

cimport cython
cimport numpy as cnp
from libc.stdint cimport int64_t


@cython.final
@cython.freelist(32)
cdef class Indices:
    cdef object owner        # keeps them alive
    cdef int64_t *start
    cdef Py_ssize_t count


@cython.final
cdef class Plan:
    cdef object draw
    cdef object end
    cdef cnp.ndarray owner   # what draw returned
    cdef int64_t *start
    cdef Py_ssize_t count
    cdef Py_ssize_t size
    cdef Py_ssize_t at
    cdef bint drop_last
    cdef bint is_over

    cdef int take(self, cnp.ndarray drawn) except -1

# Which batches of an epoch were delivered, and a checksum of their indices.

cimport cython
from libc.stdint cimport int64_t, uint64_t


@cython.final
cdef class Delivered:
    cdef readonly int64_t count      # batches delivered
    cdef readonly int64_t low        # all numbers below were delivered
    cdef readonly int64_t high       # and none from this one on
    cdef readonly int64_t last_worker
    cdef readonly list by_worker     # per worker: how many batches of it were
    cdef readonly list snapshots     # per worker: the one that came with the last of them, or None
    cdef readonly bytes sampler      # a state of the sampler; None: it has none
    cdef readonly int64_t sampler_at  # how many batches it had drawn then
    cdef uint64_t sum
    cdef bint is_numbered            # requests name their samples
    cdef list gaps                   # numbers of the first tasks; later ones follow each other
    cdef int64_t base                # number of the first task that follows
    cdef set early                   # delivered numbers above `low`
    cdef dict sums                   # task -> checksum of its indices
    cdef dict states                 # number -> state of the sampler after it
    cdef int64_t task                # in hand; -1: none
    cdef Py_ssize_t worker
    cdef object snapshot

    # The last delivery, and what it replaced.
    cdef bint has_last               # there was one since this was made
    cdef int64_t last_number         # of its batch; only if is_numbered
    cdef uint64_t last_sum
    cdef int64_t low_before, high_before, worker_before, sampler_at_before
    cdef bytes sampler_before
    cdef object snapshot_before      # that worker's

    cdef int64_t number(self, int64_t task) except -1
    cdef advance(self, int64_t low)

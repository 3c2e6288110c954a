# The trainer's end of a segment.

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from shmloader.core.csrc cimport ledger, news, slot_answer


@cython.final
@cython.freelist(8)
@cython.no_gc
cdef class News:
    cdef readonly uint32_t worker
    cdef readonly object verb
    cdef readonly uint32_t slot
    cdef readonly uint64_t ticket
    cdef readonly object kind


@cython.final
cdef class Ledger:
    cdef ledger *table
    cdef object __weakref__
    cdef readonly uint32_t slots   # in use; spare ranges come on top
    cdef int64_t looked_ns      # when children were looked for
    cdef int64_t memory_looked_ns   # when is_time_to_look() said so
    cdef uint64_t next_ticket   # tickets are placed in order: what lies below was placed
    cdef list resuming          # per worker: how many resumes it has not answered
    cdef set owing              # dead workers with a resume that their replacements are told again
    cdef list seeds             # per worker: the seed of the resume it was told last
    cdef public bint heals
    cdef public bint follows
    cdef public bint publishes
    cdef public uint32_t scarce_slots
    cdef list snapshots         # per slot: the snapshot of its answer, or None
    cdef readonly list progress   # per worker: the Progress from which another would go on
    cdef dict lending             # slot -> ticket of the batch lent last, which no user holds
    cdef readonly dict recalled   # ticket -> worker: to be placed again, since the worker died
    cdef public uint64_t waited_ns
    cdef public uint64_t batches
    cdef public uint64_t bytes
    cdef public uint64_t spilled
    cdef public uint64_t restarts
    cdef public uint64_t pickled_bytes
    cdef public uint64_t pickled_batches

    cdef look_for_children(self)
    cdef int check_owner(self) except -1
    cdef forget_workers(self)
    cdef note_progress(self, uint32_t worker, uint32_t slot)
    cdef begin_epoch(self, uint32_t worker)
    cdef str ticket_named(self, const news *heard)
    cdef free_slots_of(self, uint32_t worker)
    cdef char *open(self, uint32_t slot) except NULL
    cdef int free(self, uint32_t slot) except -1
    cdef int raise_wrong_state(self, uint32_t slot) except -1
    cdef void count(self, const slot_answer *answer) noexcept
    cdef uint64_t part_to_move(self) noexcept

# The objects of a batch that a walk has met, by their addresses.

from libc.stdint cimport int64_t

cdef enum:
    # What stands for an object that has no number; each is also what the walk knows of it.
    ABSENT = -1       # it was not met
    UNFINISHED = -2   # its node is being written, and the trainer cannot refer to it yet

cdef struct NumberEntry:
    const void *address   # NULL: the entry is empty
    int64_t number

cdef struct Numbers:
    NumberEntry *entries
    size_t count
    size_t capacity   # a power of two, or 0

cdef int64_t *number_at(Numbers *numbers, const void *address) except NULL
cdef void forget_numbers(Numbers *numbers) noexcept

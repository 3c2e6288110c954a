# A request as bytes in a slot: the trainer writes it, a worker reads it.

from libc.stdint cimport uint32_t, uint64_t

cdef struct Request:
    int kind
    char *start
    uint64_t length


cdef object write_request(object index, tuple numbers, Request *request)
cdef tuple read_numbers(const char *start)
cdef object read_request(uint32_t kind, const char *start, uint64_t length)

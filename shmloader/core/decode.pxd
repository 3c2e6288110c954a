# A slot, or the blocks that it was copied out to, into a batch; and one record where it lies.

from libc.stdint cimport uint64_t

from shmloader.core.csrc cimport lease

cdef object decode(const Places *places, uint64_t payload_bytes, bytes layout, mover=*,
                   uint64_t small_bytes=*, bint apart=*)
cdef object decode_record(char *start, uint64_t length, lease *owner, Alias alias, tuple names,
                          bint copies)

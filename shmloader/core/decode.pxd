# A slot, or a block that it was spilled to, into a batch.

from libc.stdint cimport uint64_t

from shmloader.core.csrc cimport lease

cdef object decode(lease *owner, char *payload, uint64_t payload_bytes, bytes layout, loads)

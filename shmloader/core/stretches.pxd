# The stretches of a payload, and the places where they lie once a batch is delivered.

from libc.stdint cimport uint64_t

from shmloader.core.csrc cimport lease

cdef struct Stretch:
    uint64_t start   # in the payload
    uint64_t end

cdef struct Stretches:
    Stretch *items
    size_t count
    size_t capacity

cdef struct Place:
    uint64_t start   # of the stretch, in the payload
    uint64_t end
    char *memory     # of its first byte
    lease *owner     # of that memory

cdef struct Places:
    Place whole      # of a batch that lies in one piece
    Place *items     # in the order of the payload; or &whole
    size_t count
    lease *slot      # the lease of what stays in the slot; each other owner is a block

cdef uint64_t UNLOCKED_BYTES
cdef uint64_t NO_LEAF   # longer than any leaf

cdef int add_stretch(Stretches *stretches, uint64_t start, uint64_t length) except -1
cdef void settle_stretches(Stretches *stretches, uint64_t shared_bytes) noexcept
cdef bint are_whole(const Stretches *stretches, uint64_t payload_bytes) noexcept
cdef uint64_t stretches_length(const Stretches *stretches) noexcept
cdef void write_stretches(const Stretches *stretches, char *to) noexcept

cdef int64_t skip_stretches(bytes layout) except -1
cdef int place_leaves(Places *places, lease *slot, char *payload, uint64_t payload_bytes,
                      bytes layout, uint64_t most_bytes) except -1
cdef void drop_blocks(Places *places) noexcept
cdef uint64_t small_leaf(const Places *places, uint64_t most_bytes) noexcept

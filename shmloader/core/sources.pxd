# The leaves of a batch: those that are not in the slot yet, and those that were made there.

from libc.stdint cimport uint64_t

cdef struct Source:
    char *start
    uint64_t length
    size_t owner      # the tensor's storage, as torch knows it; 0: no other leaf shares this memory
    size_t sparse     # number of a tensor that shows little from its start to its end; 0: none
    size_t patch      # where in the stream the offset stands
    uint64_t offset   # in the slot or record
    uint64_t unit     # it begins at a multiple of this, a power of two

cdef struct Sources:
    Source *items
    size_t count
    size_t capacity
    uint64_t copied_bytes   # by `copy_sources`, all together

cdef int add_source(Sources *sources, const Source *source) except -1
cdef void sort_sources(Sources *sources) noexcept
cdef size_t end_of_stretch(const Sources *sources, size_t first, char **end) noexcept nogil
cdef int move_strangers(Sources *made, Sources *sources) except -1
cdef uint64_t place_sources(Sources *sources, uint64_t cursor) noexcept
cdef void copy_sources(const Sources *sources, char *slot) noexcept nogil
cdef void patch_offsets(const Sources *sources, char *stream) noexcept nogil

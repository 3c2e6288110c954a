# The leaves of a batch that are not in the slot yet: where they lie, where they go, and the copy.
#
# Tensors of one storage that overlap in memory make up a stretch. A stretch is copied once, however
# many leaves lie in it, so that these stay aliases of each other. All other leaves are apart in the
# trainer, as with torch, even if they overlap in the worker: arrays, and tensors of two storages.


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


cdef int add_source(Sources *sources, const Source *source) except -1:
    """Note a leaf, and where in the stream its offset is missing."""
    sources.items = <Source *>with_room(sources.items, sources.count, &sources.capacity,
                                        sizeof(Source))
    sources.items[sources.count] = source[0]
    sources.count += 1
    return 0


cdef int by_start(const void *a, const void *b) noexcept nogil:
    cdef const Source *x = <const Source *>a
    cdef const Source *y = <const Source *>b
    if x.start != y.start:
        return 1 if x.start > y.start else -1
    return (x.length < y.length) - (x.length > y.length)


cdef int by_owner(const void *a, const void *b) noexcept nogil:
    cdef const Source *x = <const Source *>a
    cdef const Source *y = <const Source *>b
    if x.owner != y.owner:
        return 1 if x.owner > y.owner else -1
    return by_start(a, b)


cdef size_t end_of_overlap(const Sources *sources, size_t first) noexcept nogil:
    """Returns the number of the first source that shares no memory with those before it."""
    cdef const Source *items = sources.items
    cdef char *end = items[first].start + items[first].length
    cdef size_t i = first + 1
    while i < sources.count and items[i].start < end:
        end = max(end, items[i].start + items[i].length)
        i += 1
    return i


cdef size_t end_of_stretch(const Sources *sources, size_t first, char **end) noexcept nogil:
    """Returns the number of the first source behind a stretch; they are sorted."""
    cdef const Source *items = sources.items
    cdef size_t i = first + 1
    end[0] = items[first].start + items[first].length
    if items[first].owner == 0:
        return i
    while i < sources.count and items[i].owner == items[first].owner and items[i].start < end[0]:
        end[0] = max(end[0], items[i].start + items[i].length)
        i += 1
    return i


cdef void sort_sources(Sources *sources) noexcept:
    """Sort leaves by their memory, and those that overlap by their owners."""
    cdef size_t first = 0
    cdef size_t after
    if sources.count < 2:   # with none there are no items, and qsort needs some
        return
    qsort(sources.items, sources.count, sizeof(Source), by_start)
    while first < sources.count:
        after = end_of_overlap(sources, first)
        if after > first + 1:
            qsort(&sources.items[first], after - first, sizeof(Source), by_owner)
        first = after


cdef int move_strangers(Sources *made, Sources *sources) except -1:
    """Of leaves that were made in one place, have all but one owner's copied elsewhere."""
    cdef size_t first = 0
    cdef size_t after, i, stays
    qsort(made.items, made.count, sizeof(Source), by_start)
    while first < made.count:
        after = end_of_overlap(made, first)
        stays = first
        for i in range(first, after):
            if made.items[i].length > made.items[stays].length:
                stays = i
        for i in range(first, after):
            if i == stays or 0 < made.items[i].owner == made.items[stays].owner:
                continue
            add_source(sources, &made.items[i])
            made.items[i].length = 0
        first = after
    return 0


cdef uint64_t place_sources(Sources *sources, uint64_t cursor) noexcept:
    """Give every source its offset, those of a stretch a common one; returns the end."""
    cdef Source *items = sources.items
    cdef size_t first = 0
    cdef size_t i, after
    cdef char *start
    cdef char *end
    sort_sources(sources)
    sources.copied_bytes = 0
    while first < sources.count:
        after = end_of_stretch(sources, first, &end)
        start = items[first].start
        if after == first + 1:
            cursor = round_up(cursor, items[first].unit)
        else:
            # Leaves that overlap stay aligned as they were.
            cursor = round_up(cursor, CACHE_LINE) + <size_t>start % CACHE_LINE
        for i in range(first, after):
            items[i].offset = cursor + (items[i].start - start)
        cursor += end - start
        sources.copied_bytes += end - start
        first = after
    return cursor


cdef void copy_sources(const Sources *sources, char *slot) noexcept nogil:
    """Copy every stretch once, to where it was placed."""
    cdef const Source *source
    cdef size_t first = 0
    cdef size_t after
    cdef char *end
    while first < sources.count:
        after = end_of_stretch(sources, first, &end)
        source = &sources.items[first]
        copy_bytes(slot + source.offset, source.start, end - source.start, sources.copied_bytes)
        first = after


cdef void patch_offsets(const Sources *sources, char *stream) noexcept nogil:
    """Write into the layout where the leaves lie."""
    cdef size_t i
    for i in range(sources.count):
        memcpy(stream + sources.items[i].patch, &sources.items[i].offset, 8)

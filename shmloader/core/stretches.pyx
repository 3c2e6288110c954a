# The stretches of a payload, and the places where they lie once a batch is delivered.
#
# A stretch is a part of the payload that is kept or dropped as one: leaves that overlap lie in one
# stretch, and so do small neighbours. The worker lists them at the head of the layout, unless the
# batch is small or one stretch is all of it. The trainer copies each stretch into a block of its
# own, with a lease of its own: all of them if the batch spills, and otherwise the small ones beside
# large ones. So a kept leaf costs what it weighs, and kept labels do not hold their images' slot.
#
# A list that contradicts itself is refused here; that each leaf lies in one stretch is checked by
# the decoder.

from shmloader.errors import WorkerBroken


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

cdef enum:
    HEAD_BYTES = 9   # tag and count, before the list

# Fewer bytes are copied faster than Python's lock is given up and taken again.
cdef uint64_t UNLOCKED_BYTES = 1 << 20
cdef uint64_t NO_LEAF = <uint64_t>-1   # longer than any leaf

cdef enum:
    SMALL_PART = 64   # of a batch: a leaf that may leave a slot which devices read


# In the worker

cdef void *with_room(void *items, size_t count, size_t *capacity, size_t item_bytes) except NULL:
    """Returns an array with room for one more item; it is a longer one if this was full."""
    cdef size_t longer = 2 * capacity[0] + 16
    cdef void *grown
    if count < capacity[0]:
        return items
    grown = realloc(items, longer * item_bytes)
    if grown == NULL:
        raise MemoryError(f"no memory for {longer} values")
    capacity[0] = longer
    return grown


cdef int add_stretch(Stretches *stretches, uint64_t start, uint64_t length) except -1:
    """Note a leaf, as a stretch of its own."""
    stretches.items = <Stretch *>with_room(stretches.items, stretches.count, &stretches.capacity,
                                           sizeof(Stretch))
    stretches.items[stretches.count] = Stretch(start, start + length)
    stretches.count += 1
    return 0


cdef int by_offset(const void *a, const void *b) noexcept nogil:
    cdef const Stretch *x = <const Stretch *>a
    cdef const Stretch *y = <const Stretch *>b
    return (x.start > y.start) - (x.start < y.start)


cdef bint are_sorted(const Stretches *stretches) noexcept:
    cdef size_t i
    for i in range(1, stretches.count):
        if stretches.items[i].start < stretches.items[i - 1].start:
            return False
    return True


cdef void settle_stretches(Stretches *stretches, uint64_t shared_bytes) noexcept:
    """Join leaves that overlap, and small neighbours; what remains is in order and disjoint."""
    cdef Stretch *items = stretches.items
    cdef size_t joined = 0
    cdef size_t i
    if stretches.count == 0:
        return
    if not are_sorted(stretches):
        qsort(items, stretches.count, sizeof(Stretch), by_offset)
    for i in range(1, stretches.count):
        if items[i].start < items[joined].end or items[i].end <= items[joined].start + shared_bytes:
            items[joined].end = max(items[joined].end, items[i].end)
        else:
            joined += 1
            items[joined] = items[i]
    stretches.count = joined + 1


cdef bint are_whole(const Stretches *stretches, uint64_t payload_bytes) noexcept:
    """Returns True if a list need not be written: one stretch is all of the payload."""
    return (stretches.count == 1 and stretches.items[0].start == 0
            and stretches.items[0].end == payload_bytes)


cdef uint64_t stretches_length(const Stretches *stretches) noexcept:
    return HEAD_BYTES + stretches.count * sizeof(Stretch)


cdef void write_stretches(const Stretches *stretches, char *to) noexcept:
    """Write the list as the head of a layout."""
    cdef uint64_t count = stretches.count
    to[0] = TAG_STRETCHES
    memcpy(to + 1, &count, 8)
    memcpy(to + HEAD_BYTES, stretches.items, count * sizeof(Stretch))


# In the trainer

cdef int refuse_stretches(str what) except -1:
    raise WorkerBroken(f"the stretches of a batch's layout cannot be read: {what}")


cdef int64_t skip_stretches(bytes layout) except -1:
    """Returns the length of the list at the head of a layout, which lies in it; 0 if none is."""
    cdef const char *start = PyBytes_AS_STRING(layout)
    cdef uint64_t length = PyBytes_GET_SIZE(layout)
    cdef uint64_t count
    if length == 0 or start[0] != TAG_STRETCHES:
        return 0
    if length < HEAD_BYTES:
        refuse_stretches("their number is missing")
    memcpy(&count, start + 1, 8)
    if count > (length - HEAD_BYTES) // sizeof(Stretch):
        refuse_stretches(f"{count} in a layout of {length} bytes")
    return HEAD_BYTES + count * sizeof(Stretch)


cdef int place_leaves(Places *places, lease *slot, char *payload, uint64_t payload_bytes,
                      bytes layout, uint64_t most_bytes) except -1:
    """
    Copy stretches out of a slot, and say where a batch's leaves lie from now on.

    Args:
        places: Filled in; `drop_blocks` must follow if nothing is raised.
        slot: The lease of the slot, which need not have begun.
        most_bytes: Copied are the shortest stretches that have at most so many bytes together.

    Raises:
        WorkerBroken: The list contradicts itself.
        MemoryError: No private memory for all of it.
    """
    cdef uint64_t longest
    cdef bint done
    places.whole = Place(0, payload_bytes, payload, slot)
    places.items = &places.whole
    places.count = 1
    places.slot = slot
    read_stretches(places, payload, layout)
    longest = longest_moved(places, most_bytes)
    done = make_blocks(places, longest)
    if most_bytes < UNLOCKED_BYTES:
        copy_out(places, payload)
    else:
        with nogil:
            copy_out(places, payload)
    # Of a part, what finds no memory may stay in the slot.
    if most_bytes >= payload_bytes and not done:
        drop_blocks(places)
        raise MemoryError(
            f"no private memory for a batch of {payload_bytes} bytes that is copied out"
        )
    return 0


cdef int read_stretches(Places *places, char *payload, bytes layout) except -1:
    """Make a place of each stretch that a layout lists, in the slot for now."""
    cdef const char *list_ = PyBytes_AS_STRING(layout) + HEAD_BYTES
    cdef int64_t length = skip_stretches(layout)
    cdef uint64_t payload_bytes = places.whole.end
    cdef size_t count = (length - HEAD_BYTES) // sizeof(Stretch)
    cdef uint64_t end = 0
    cdef Place *items
    cdef Stretch stretch
    cdef size_t i
    if length == 0:
        return 0
    items = <Place *>malloc((count + 1) * sizeof(Place))
    if items == NULL:
        raise MemoryError(f"no memory for {count} stretches")
    items[count] = Place(0, 0, payload, places.slot)   # so that the first place is one
    for i in range(count):
        memcpy(&stretch, list_ + i * sizeof(Stretch), sizeof(Stretch))
        if stretch.start < end or stretch.end <= stretch.start or stretch.end > payload_bytes:
            free(items)
            refuse_stretches(f"one from {stretch.start} to {stretch.end} after one to {end} in a "
                             f"payload of {payload_bytes}")
        items[i] = Place(stretch.start, stretch.end, payload + stretch.start, places.slot)
        end = stretch.end
    places.items = items
    places.count = count
    return 0


cdef uint64_t longest_moved(const Places *places, uint64_t most_bytes) noexcept:
    """Returns a length: all stretches up to it have at most so many bytes together."""
    cdef uint64_t longest = most_bytes
    while longest > 0 and bytes_up_to(places, longest) > most_bytes:
        longest //= 4
    return longest


cdef uint64_t small_leaf(const Places *places, uint64_t most_bytes) noexcept:
    """Returns a length: leaves up to it are moved out of a slot that devices read."""
    return min(longest_moved(places, most_bytes), places.whole.end // SMALL_PART)


cdef uint64_t bytes_up_to(const Places *places, uint64_t longest) noexcept:
    cdef uint64_t total = 0
    cdef uint64_t length
    cdef size_t i
    for i in range(places.count):
        length = places.items[i].end - places.items[i].start
        if length <= longest:
            total += length
    return total


cdef bint make_blocks(Places *places, uint64_t longest) noexcept:
    """Make a block for each stretch of at most so many bytes; False: there is no memory."""
    cdef size_t i
    for i in range(places.count):
        if places.items[i].end - places.items[i].start <= longest:
            if not make_block(&places.items[i]):
                return False
    return True


cdef bint make_block(Place *place) noexcept:
    """Move a place to a block of its own, as far from a cache line's start as it was."""
    cdef uint64_t shift = place.start % CACHE_LINE
    cdef lease *block = lease_block_new(shift + place.end - place.start)
    if block == NULL:
        return False
    place.memory = <char *>lease_block_start(block) + shift
    place.owner = block
    return True


cdef void copy_out(const Places *places, const char *payload) noexcept nogil:
    """Copy into each block what its stretch holds."""
    cdef const Place *place
    cdef size_t i
    for i in range(places.count):
        place = &places.items[i]
        if place.owner != places.slot:
            copy_plain(place.memory, payload + place.start, place.end - place.start)


cdef void drop_blocks(Places *places) noexcept:
    """Give up the places of a batch that was decoded: from now on its aliases keep the blocks."""
    cdef size_t i
    for i in range(places.count):
        if places.items[i].owner != places.slot:
            lease_drop(places.items[i].owner)
    if places.items != &places.whole:
        free(places.items)

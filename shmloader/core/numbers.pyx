# The objects of a batch that a walk has met, by their addresses: a hash table with open addressing.
#
# Every list, dict, tensor and array of a batch is looked up once. A dict would make an int of each
# address, and cost six times as much.

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


cdef inline size_t hash_address(const void *address) noexcept:
    # Fibonacci hashing: the low bits of an address are those of its alignment.
    return (<uint64_t><size_t>address * <uint64_t>0x9E3779B97F4A7C15) >> 32


cdef NumberEntry *find_entry(const Numbers *numbers, const void *address) noexcept:
    """Find the entry of an address, or the empty one where it belongs."""
    cdef size_t mask = numbers.capacity - 1
    cdef size_t at = hash_address(address) & mask
    while numbers.entries[at].address != NULL and numbers.entries[at].address != address:
        at = (at + 1) & mask
    return &numbers.entries[at]


cdef int grow_numbers(Numbers *numbers) except -1:
    cdef Numbers grown
    cdef size_t i
    grown.count = numbers.count
    grown.capacity = max(4 * numbers.capacity, <size_t>64)
    grown.entries = <NumberEntry *>calloc(grown.capacity, sizeof(NumberEntry))
    if grown.entries == NULL:
        raise MemoryError(f"no memory for the numbers of {grown.capacity} objects")
    for i in range(numbers.capacity):
        if numbers.entries[i].address != NULL:
            find_entry(&grown, numbers.entries[i].address)[0] = numbers.entries[i]
    free(numbers.entries)
    numbers[0] = grown
    return 0


cdef int64_t *number_at(Numbers *numbers, const void *address) except NULL:
    """Find what is known of an object, ABSENT at first; the place is good until the next call."""
    cdef NumberEntry *entry
    if 2 * numbers.count >= numbers.capacity:
        grow_numbers(numbers)
    entry = find_entry(numbers, address)
    if entry.address == NULL:
        entry.address = address
        entry.number = ABSENT
        numbers.count += 1
    return &entry.number


cdef void forget_numbers(Numbers *numbers) noexcept:
    """Forget all objects."""
    free(numbers.entries)
    numbers.entries = NULL
    numbers.count = numbers.capacity = 0

# The samples of the batch in hand, one by one, so that it can be seen which one a worker is at.


@cython.final
cdef class Samples:
    """
    The indices of a batch for torch's fetcher, which takes one and then fetches its sample.

    Viewers are shown each index as it is taken; after the last one collating begins.

    Attributes:
        position: How many were taken; the last of them is the one that is fetched.
    """

    cdef SlotMemory memory        # None: no view shows them
    cdef list indices
    cdef readonly uint32_t position

    def __init__(self, list indices):
        """Note the samples of a batch that no viewer sees."""
        self.indices = indices

    def __len__(self):
        return len(self.indices)

    def __iter__(self):
        self.position = 0
        return self

    def __next__(self):
        cdef SlotMemory memory = self.memory
        cdef uint32_t count = <uint32_t>len(self.indices)
        # A child that user code forked here has no slot in hand, and shows nothing.
        cdef bint is_shown = memory is not None and memory.slot >= 0
        cdef int64_t number = <int64_t>VIEW_UNKNOWN_INDEX
        cdef int overflow = 0
        if self.position >= count:
            if is_shown:
                desk_begin_collating(&memory.seat, memory.blocked_ns)
            raise StopIteration
        index = self.indices[self.position]
        if is_shown:
            if type(index) is int:
                number = PyLong_AsLongLongAndOverflow(index, &overflow)
                number = <int64_t>VIEW_UNKNOWN_INDEX if overflow else number
            desk_begin_sample(&memory.seat, self.position, count, number)
        self.position += 1
        return index


cdef Samples watched_samples(SlotMemory memory, list indices):
    """Make the samples of the batch in hand."""
    cdef Samples made = Samples.__new__(Samples)
    made.memory, made.indices = memory, indices
    memory.watches = True
    return made

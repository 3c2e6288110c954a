# The leaves of a batch or record into its payload.
#
# Those that were collated in the slot are in place already; the walk notes the others, and one pass
# copies them in afterwards, so that pages are asked for once and tensors of one storage stay
# aliases of each other. A tensor that shows little of its memory, and shares nothing of that with
# another, is copied without gaps: which of them do is known at the end, and their strides are
# patched in.

import numpy
import torch

# By the bytes of an element: all are numpy's too.
cdef dict RAW_TYPES = {
    1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128,
}


cdef enum:
    # A storage may have been resized under its tensors. To ask takes as long as to copy 4 KiB, so
    # it is asked for these alone: a given-up storage begins at address 0.
    LARGE_BYTES = 4096
    LOW_ADDRESS = 1 << 30
    RECORD_UNIT_MAX = 16   # what no item of a number type is longer than
    LARGE_LEAF = 1024      # of a record: begins on a cache line
    DENSE = 2              # elements between a tensor's first and last, for each of its own
    COMPARED_MAX = 256     # tensors that lie in each other: all pairs are compared
    PAIR_EFFORT = 1000     # what numpy may try until it finds that two arrays are apart


cdef inline uint64_t unit_for(uint64_t item_bytes, uint64_t length) noexcept:
    """Returns the alignment of a record's leaf: of its items, or a cache line if it is large."""
    cdef uint64_t unit = item_bytes & (0 - item_bytes)   # the largest power of two that divides it
    if length >= LARGE_LEAF:
        return CACHE_LINE
    return max(<uint64_t>1, min(unit, <uint64_t>RECORD_UNIT_MAX))


cdef bint is_apart(list arrays, Py_ssize_t at) except -1:
    """Returns True if one of several arrays surely shares no element with the others."""
    cdef Py_ssize_t i
    try:
        for i in range(len(arrays)):
            if i != at and numpy.shares_memory(arrays[at], arrays[i], max_work=PAIR_EFFORT):
                return False
    except numpy.exceptions.TooHardError:
        return False
    return True


@cython.internal
cdef class LeafWriter(StreamWriter):
    cdef SlotMemory memory     # None: a record is written
    cdef Sources sources
    cdef Sources made          # those that the slot has already
    cdef uint64_t made_end
    cdef bint is_shared        # something may stand twice in the slot's own memory
    cdef list sparse           # tensors that show little of their memory
    cdef Stretches stretches
    cdef uint64_t joined_bytes   # as many at the payload's start are one stretch
    cdef uint64_t pickled_bytes
    cdef list kept             # what the noted bytes belong to

    def __dealloc__(self):
        free(self.sources.items)
        free(self.made.items)
        free(self.stretches.items)

    cdef int forget_leaves(self) except -1:
        self.sources.count = self.made.count = self.stretches.count = 0
        self.made_end, self.is_shared = 0, False
        self.sparse.clear()
        self.pickled_bytes = 0
        return 0

    @cython.final
    cdef int64_t offset_of(self, const char *start, uint64_t length) noexcept:
        """Returns the offset of bytes that were made in the slot, or -1."""
        return -1 if self.is_record else self.memory.offset_of(start, length)

    @cython.final
    cdef int put_source(self, char *start, uint64_t length, uint64_t item_bytes) except -1:
        """Write where bytes will lie that are no tensor's."""
        cdef Source source = Source(start, length, 0, 0, 0, 0, CACHE_LINE)
        return self.put_owned(&source, item_bytes)

    @cython.final
    cdef int put_owned(self, Source *source, uint64_t item_bytes) except -1:
        """Write where the bytes will lie: known if made in the slot, otherwise patched in."""
        source.patch = self.used
        self.put_fixed(0)
        return self.note(source, self.is_made(source), item_bytes)

    @cython.final
    cdef bint is_made(self, Source *source) noexcept:
        """Returns True for bytes that were made in the slot, and says where."""
        cdef int64_t offset = self.offset_of(source.start, source.length)
        source.offset = max(offset, 0)
        return offset >= 0

    @cython.final
    cdef int note(self, Source *source, bint is_made, uint64_t item_bytes) except -1:
        """Note a leaf, for which there is room in the stream already."""
        if source.length == 0:
            return 0
        if is_made:
            memcpy(self.stream + source.patch, &source.offset, 8)
            if source.offset < self.made_end:
                self.is_shared = True
            self.made_end = max(self.made_end, source.offset + source.length)
            return add_source(&self.made, source)
        if self.is_record:
            source.unit = unit_for(item_bytes, source.length)
        return add_source(&self.sources, source)

    cdef int put_part(self, object part) except -1:
        cdef Py_buffer view
        PyObject_GetBuffer(part, &view, PyBUF_SIMPLE)
        try:
            self.kept.append(part)
            self.put_number(view.len)
            self.put_source(<char *>view.buf, view.len, RECORD_UNIT_MAX)
        finally:
            PyBuffer_Release(&view)
        return 0

    cdef int look_at(self, object tensor, const DLTensor *is_, Source *source) except -1:
        """Find what of a tensor's memory may be copied: it may be given up, or show little."""
        cdef char *start = source.start
        if source.length >= LARGE_BYTES or <size_t>start < LOW_ADDRESS:
            source.start = self.start_in_storage(tensor, start, source.length)
        if source.start == start and self.is_wasted(source.length, is_):
            self.sparse.append(tensor)
            source.sparse = len(self.sparse)
        return 0

    cdef bint is_wasted(self, uint64_t length, const DLTensor *is_) noexcept:
        """Returns True if too little of a tensor's memory is shown; in a record all bytes count."""
        cdef uint64_t shown = count_elements(is_) * (is_.dtype.bits // 8)
        return length > DENSE * shown and (self.is_record or length >= LARGE_BYTES)

    cdef char *start_in_storage(self, object tensor, char *start, uint64_t length) except NULL:
        """Returns the start of memory that is a tensor's: zeros if its storage was given up."""
        cdef object storage = tensor.untyped_storage()
        cdef uint64_t whole = storage.nbytes()
        cdef object zeros
        if whole == 0:
            zeros = torch.zeros(length, dtype=torch.uint8)
            self.kept.append(zeros)
            return <char *><size_t>zeros.data_ptr()
        if <size_t>start + length > <size_t>storage.data_ptr() + whole:
            raise RuntimeError(
                f"a tensor ends beyond its storage, which was resized to {whole} bytes"
            )
        return start

    cdef uint64_t place(self, uint64_t cursor) except? 0:
        """Give the leaves their offsets, now that all are known; returns the end."""
        if self.is_shared:
            move_strangers(&self.made, &self.sources)
        if self.sparse:
            self.close_gaps()
        return place_sources(&self.sources, cursor)

    cdef int close_gaps(self) except -1:
        """Replace each view with gaps, which no other tensor overlaps, by a copy without gaps."""
        cdef size_t first = 0
        cdef size_t after
        cdef char *end
        sort_sources(&self.sources)
        while first < self.sources.count:
            after = end_of_stretch(&self.sources, first, &end)
            if self.is_sparse(first, after, end - self.sources.items[first].start):
                self.close_gaps_of(first, after)
            first = after
        return 0

    cdef bint is_sparse(self, size_t first, size_t after, uint64_t length) except -1:
        """Returns True if the tensors of a stretch show less than half of it."""
        cdef const Source *source
        cdef uint64_t shown = 0
        cdef size_t i
        for i in range(first, after):
            source = &self.sources.items[i]
            shown += source.length if source.sparse == 0 else self.sparse[source.sparse - 1].nbytes
        return length > DENSE * shown and after - first <= COMPARED_MAX

    cdef int close_gaps_of(self, size_t first, size_t after) except -1:
        cdef list seen = [self.memory_of(&self.sources.items[i]) for i in range(first, after)]
        cdef list lone = [
            i for i in range(first, after)
            if self.sources.items[i].sparse > 0 and is_apart(seen, i - first)
        ]
        for i in lone:
            self.close_gaps_in(&self.sources.items[i])
        return 0

    cdef object memory_of(self, const Source *source):
        """See what a leaf shows, to compare it with others."""
        cdef cnp.npy_intp length = source.length
        cdef object tensor
        if source.sparse == 0:
            return cnp.PyArray_SimpleNewFromData(1, &length, cnp.NPY_UINT8, source.start)
        tensor = self.sparse[source.sparse - 1]
        return tensor.view(RAW_TYPES[tensor.itemsize]).numpy()

    cdef int close_gaps_in(self, Source *source) except -1:
        cdef object made = self.sparse[source.sparse - 1].clone()
        cdef int64_t stride
        cdef size_t at = source.patch + 8 * (1 + made.ndim)   # after offset and shape
        self.kept.append(made)
        source.start, source.length = <char *><size_t>made.data_ptr(), made.nbytes
        source.owner = source.sparse = 0
        for stride in made.stride():
            memcpy(self.stream + at, &stride, 8)
            at += 8
        return 0

    cdef uint64_t join_stretches(self, uint64_t payload_bytes) except? 0:
        """Find what of the payload can live apart; returns the length of the list, 0 for none."""
        cdef const Source *source
        cdef size_t i
        if payload_bytes <= POLICY_SHARED_BYTES:
            return 0
        if self.joined_bytes > 0:
            add_stretch(&self.stretches, 0, self.joined_bytes)
        for i in range(self.made.count):
            source = &self.made.items[i]
            if source.length > 0 and source.offset >= self.joined_bytes:
                add_stretch(&self.stretches, source.offset, source.length)
        for i in range(self.sources.count):
            source = &self.sources.items[i]
            add_stretch(&self.stretches, source.offset, source.length)
        # No more together than moves at once, or a small leaf would stay for its neighbour's sake.
        settle_stretches(&self.stretches,
                         min(POLICY_SHARED_BYTES, payload_bytes // POLICY_MOVED_PART))
        if are_whole(&self.stretches, payload_bytes):
            return 0
        return stretches_length(&self.stretches)

    cdef int finish(self, slot_answer *draft) except -1:
        """Copy what is not in the slot yet, write the layout behind it, and describe both."""
        cdef uint64_t payload = self.place(self.memory.cursor)
        cdef uint64_t layout = round_up(payload, CACHE_LINE)
        cdef uint64_t head = self.join_stretches(payload)
        cdef char *slot
        self.memory.check_canary()
        self.memory.need(layout + head + self.used)
        slot = self.memory.start
        if head > 0:
            write_stretches(&self.stretches, slot + layout)
        with nogil:
            copy_sources(&self.sources, slot)
            patch_offsets(&self.sources, self.stream)
            STEP("write: payload")
            STEP_COPY("write: half a layout", slot + layout + head, self.stream, self.used)
            STEP("write: layout")
        draft.payload_bytes = payload
        draft.layout_offset = layout
        draft.layout_bytes = head + self.used
        draft.pickled_bytes = self.pickled_bytes
        draft.flags = 0
        self.memory.cursor = layout + head + self.used
        return 0

    cdef uint64_t place_record(self, uint64_t position) except? 0:
        """Give the leaves their offsets after the stream; returns the record's length."""
        cdef uint64_t end = self.place(position + self.used)
        cdef size_t i
        for i in range(self.sources.count):
            self.sources.items[i].offset -= position
        patch_offsets(&self.sources, self.stream)
        return end - position

    cdef void write_record(self, char *to, uint64_t length) noexcept:
        """Write a record that was placed, with zeros between its leaves."""
        memcpy(to, self.stream, self.used)
        if length > self.used:
            memset(to + self.used, 0, length - self.used)
        with nogil:
            copy_sources(&self.sources, to)

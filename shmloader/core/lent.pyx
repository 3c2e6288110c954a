# A batch that is leased and not decoded yet: it can be decoded again, if an interrupt came between.

import os

cdef enum:
    MADV_DONTFORK = 10


cdef int write_file(int fd, uint64_t offset, const char *start, uint64_t length) except -1:
    """Write bytes into a file that is shared with other processes."""
    cdef uint64_t done = 0
    cdef int64_t written
    while done < length:
        written = pwrite(fd, start + done, length - done, <int64_t>(offset + done))
        if written <= 0:
            raise OSError(errno, f"cannot write {length} bytes of a batch for other processes")
        done += <uint64_t>written
    return 0


@cython.final
@cython.freelist(8)
cdef class Posted:
    """
    Where another process finds a batch: in a file, which lies there as in a slot.

    Attributes:
        verb, place: Of the cell that said so, once it was sent by a `Feed`.
        segment: The number of the file; 0: that of the feed itself.
        offset: Where it begins there.
        length: How many bytes it has, all in all.
    """

    cdef slot_answer answer
    cdef readonly uint32_t verb
    cdef readonly uint32_t place
    cdef readonly uint64_t segment
    cdef readonly uint64_t offset

    @property
    def length(self):
        """How many bytes it has."""
        return answer_end(&self.answer)


@cython.final
cdef class Window:
    """
    A file with batches of another process, which this one only reads.

    It is mapped if that is possible: a read() of a batch takes twice as long. Forked children have
    it not mapped, and never lock it: a lock would make pages of all that was never written.

    Attributes:
        descriptor: The file.
    """

    cdef readonly int descriptor
    cdef const uint8_t *base   # NULL: it is not mapped
    cdef uint64_t mapped_bytes
    cdef uint64_t generation   # of the process that mapped it

    def __cinit__(self):
        self.descriptor = -1
        self.generation = generation_now()

    def __init__(self, int fd, bint maps=True):
        """
        Open a window on a file.

        Args:
            fd: A duplicate is kept.
            maps: Map all of it.
        """
        cdef uint64_t length = os.fstat(fd).st_size
        cdef void *base
        self.descriptor = duplicate(fd)
        if not maps or length == 0:
            return
        base = platform_map_shared(NULL, length, PROT_READ, self.descriptor)
        if base == MAP_FAILED:
            return
        if madvise(base, length, MADV_DONTFORK) != 0:
            munmap(base, length)
            return
        platform_leave_undumped(base, length)
        self.base, self.mapped_bytes = <const uint8_t *>base, length

    def __dealloc__(self):
        if self.base != NULL and self.generation == generation_now():
            munmap(<void *>self.base, self.mapped_bytes)
        if self.descriptor >= 0:
            close(self.descriptor)

    cdef const uint8_t *find(self, Posted posted) noexcept nogil:
        """Find a batch; NULL: it is to be read from the file."""
        cdef uint64_t length = answer_end(&posted.answer)
        if posted.offset > self.mapped_bytes or length > self.mapped_bytes - posted.offset:
            return NULL
        return self.base + posted.offset


def post_bytes(bytes text, uint64_t offset):
    """Make a `Posted` of bytes that are no batch and lie in a feed's own file."""
    cdef Posted posted = Posted.__new__(Posted)
    posted.offset, posted.answer.payload_bytes = offset, PyBytes_GET_SIZE(text)
    return posted


@cython.final
@cython.freelist(8)
cdef class Lent:
    """
    A batch on its way out of its slot; only the ledger makes it.

    Attributes:
        slot, ticket: Of the batch.
        payload_bytes: Bytes of its leaves, which lie at the slot's start.
        in_slot: True if they lie there; False if they were copied out.
        in_place: True if devices may read them there: the slot is page-locked, and waits for them.
    """

    cdef Places places
    cdef lease *held            # one alias of the slot; NULL: it was copied out, or has ended
    cdef bytes layout
    cdef bint is_open           # the places are filled in
    cdef slot_answer answer     # as the worker wrote it
    cdef uint64_t offset        # of the slot in its segment
    cdef readonly uint32_t slot
    cdef readonly uint64_t ticket
    cdef readonly uint64_t payload_bytes
    cdef readonly bint in_slot
    cdef readonly bint in_place

    def __dealloc__(self):
        self.let_go()

    def decode(self, mover):
        """
        Make the batch.

        Args:
            mover: Takes each plain tensor of the batch's containers, a view of the slot, and
                returns what stands in its place. All other leaves are copied out.
        """
        if not self.is_open:
            raise RuntimeError(f"the batch of ticket {self.ticket} has ended")
        return decode(&self.places, self.payload_bytes, self.layout, mover)

    @property
    def length(self):
        """How many bytes it takes where it is posted to: leaves and layout."""
        return answer_end(&self.answer)

    def post(self, uint64_t segment):
        """
        Say where another process finds the batch, as long as this has not ended.

        Args:
            segment: The number by which it knows the segment.

        Raises:
            RuntimeError: It is in no slot, or has ended.
        """
        cdef Posted posted = Posted.__new__(Posted)
        if not self.is_open or not self.in_slot:
            raise RuntimeError(f"the batch of ticket {self.ticket} is in no slot")
        posted.answer, posted.segment, posted.offset = self.answer, segment, self.offset
        return posted

    def write_to(self, int fd, uint64_t offset):
        """
        Write a batch that was copied out into a feed's own file.

        Returns:
            A `Posted`.

        Raises:
            OSError: It cannot be written.
            RuntimeError: It has ended.
        """
        cdef Posted posted = Posted.__new__(Posted)
        cdef const Place *place
        cdef size_t i
        if not self.is_open:
            raise RuntimeError(f"the batch of ticket {self.ticket} has ended")
        for i in range(self.places.count):
            place = &self.places.items[i]
            write_file(fd, offset + place.start, place.memory, place.end - place.start)
        write_file(fd, offset + self.answer.layout_offset, PyBytes_AS_STRING(self.layout),
                   PyBytes_GET_SIZE(self.layout))
        posted.answer, posted.offset = self.answer, offset
        return posted

    def end(self):
        """Give up the alias of the slot, which is free when the mover's views are gone too."""
        self.let_go()

    cdef void let_go(self) noexcept:
        if self.is_open:
            self.is_open = False
            drop_blocks(&self.places)
        if self.held != NULL:
            lease_drop(self.held)
            self.held = NULL


cdef Lent lent_of(uint32_t slot, ledger_entry *entry, char *start, uint64_t most_bytes):
    """Find the leaves of a batch in its slot; at most so many bytes of them are moved out."""
    cdef Lent lent = Lent.__new__(Lent)
    cdef const slot_answer *answer = &entry.answer
    lent.slot, lent.ticket, lent.payload_bytes = slot, entry.ticket, answer.payload_bytes
    lent.answer = answer[0]
    lent.answer.snapshot_bytes = 0
    lent.layout = PyBytes_FromStringAndSize(start + answer.layout_offset, answer.layout_bytes)
    place_leaves(&lent.places, &entry.lease, start, answer.payload_bytes, lent.layout, most_bytes)
    lent.is_open = True
    return lent


def is_plain(tensor):
    """Returns True if an exact torch.Tensor is nothing but strided CPU memory, of a known type."""
    cdef DLTensor description
    return type(tensor) is Tensor and plain_tensor(tensor, &description) == 1


cdef bint have_one_shape(const DLTensor *first, const DLTensor *second) noexcept:
    """Returns True if both have the same shape and strides."""
    cdef int i
    if first.ndim != second.ndim:
        return False
    for i in range(first.ndim):
        if first.shape[i] != second.shape[i] or first.strides[i] != second.strides[i]:
            return False
    return True


def copy_tensor(to, source):
    """Copy a plain dense tensor to one of its kind, without the lock. Returns False for others."""
    cdef DLTensor is_, into
    cdef uint64_t length
    cdef char *start
    cdef char *target
    if type(source) is not Tensor or not plain_tensor(source, &is_):
        return False
    # Its strides stand in the object, which both calls fill: they are compared at once.
    if type(to) is not Tensor or to.dtype is not source.dtype or not plain_tensor(to, &into):
        return False
    if not have_one_shape(&is_, &into):
        return False
    length = count_elements(&is_)
    if span_elements(is_.ndim, is_.shape, is_.strides) != <int64_t>length:
        return False
    length *= is_.dtype.bits // 8
    start, target = tensor_start(&is_), tensor_start(&into)
    # Not past the caches: into private memory that was slower, see bench/micro/test_copy.py.
    if length < UNLOCKED_BYTES:
        copy_plain(target, start, length)
    else:
        with nogil:
            copy_plain(target, start, length)
    return True

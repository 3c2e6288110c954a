# Samples that were fetched once, in a file that any number of processes map. csrc/cache.c says how
# they share it; here samples become records and records samples.
#
# A record is what the encoder makes of a batch: a payload, and the layout of its leaves. It comes
# out as a batch does that is copied out of its slot: each large leaf in a block of its own.

import zlib

from shmloader.errors import WorkerBroken

MISSING = object()


cdef uint32_t checksum_of(const cache_head *head, bytes layout) except? 0:
    """The checksum of a layout that belongs to the numbers of a head."""
    cdef uint64_t numbers[2]
    numbers[0], numbers[1] = head.index, head.payload_bytes
    return zlib.crc32(layout, zlib.crc32((<char *>numbers)[:sizeof(numbers)]))


cdef bytes layout_of(Encoder encoder, uint64_t *payload):
    """Place what was walked in a payload of that many bytes, and return its layout."""
    cdef uint64_t list_bytes
    cdef uint64_t layout_bytes
    cdef bytes layout
    payload[0] = encoder.place(0)
    list_bytes = encoder.join_stretches(payload[0])
    layout_bytes = list_bytes + encoder.used
    patch_offsets(&encoder.sources, encoder.stream)
    layout = PyBytes_FromStringAndSize(NULL, layout_bytes)
    if list_bytes > 0:
        write_stretches(&encoder.stretches, PyBytes_AS_STRING(layout))
    memcpy(PyBytes_AS_STRING(layout) + list_bytes, encoder.stream, encoder.used)
    return layout


cdef object copy_of(Encoder encoder, uint64_t payload, bytes layout):
    """Make of what was walked what would be found if it were kept."""
    cdef Places places
    cdef char *start = <char *>malloc(payload + CACHE_LINE)
    if start == NULL:
        raise MemoryError(f"no memory for a copy of {payload} bytes")
    try:
        with nogil:
            copy_sources(&encoder.sources, start)
        place_leaves(&places, NULL, start, payload, layout, payload)
        try:
            return decode(&places, payload, layout)
        finally:
            drop_blocks(&places)
    finally:
        free(start)


cdef bint keep_record(SampleCache cache_, uint64_t index, Encoder encoder, uint64_t payload,
                      bytes layout, has_room) except -1:
    """Write what was walked as a record, and show it. Returns True if it is seen from now on."""
    cdef cache_head head
    cdef uint64_t layout_bytes = len(layout)
    cdef uint64_t at, whole
    cdef char *start
    if layout_bytes > UINT32_MAX:
        return False
    head.index, head.payload_bytes, head.layout_bytes = index, payload, <uint32_t>layout_bytes
    head.checksum = checksum_of(&head, layout)
    whole = cache_record_bytes(&head)
    at = cache_.find_room(whole, has_room)
    if at == 0:
        return False
    start = <char *>cache_.table.base + at
    STEP_COPY("keep: half a head", start, &head, sizeof(head))
    STEP("keep: head")
    STEP_COPY("keep: half a layout", start + sizeof(head), PyBytes_AS_STRING(layout), layout_bytes)
    STEP("keep: layout")
    start += round_up(sizeof(head) + layout_bytes, CACHE_LINE)
    with nogil:
        copy_sources(&encoder.sources, start)
    if not cache_publish(&cache_.table, index, at):
        cache_give_up(&cache_.table, at, whole)
        return False
    cache_count(&cache_.table, 0, 0, 1, whole, 0)
    return True


@cython.final
cdef class SampleCache:
    """
    One process's end of a cache of samples.

    Its methods may be called on any thread. It is unmapped when the object dies.
    """

    cdef cache table
    cdef SlotMemory nowhere   # gives the encoder no memory of its own: every leaf is to be copied
    cdef uint64_t owner       # the generation of the process that made it; 0: another process did
    cdef object __weakref__

    def __init__(self, int fd, uint64_t indices, uint64_t max_bytes, uint64_t page_bytes,
                 bint is_new=False):
        """
        Map a cache, and make it if it is new: no other process has the file.

        Args:
            fd: A file of `max_bytes`, of zeros if it is made; a duplicate is kept.
            indices: How many samples there are; each takes 8 bytes.
            page_bytes: In which the file's pages come.

        Raises:
            OSError: The file cannot be mapped, or there are no pages for the words.
            ValueError: The words alone leave no room for a sample.
        """
        cdef cache_shape shape
        self.nowhere = SlotMemory.__new__(SlotMemory, None)
        memset(&shape, 0, sizeof(shape))
        shape.indices, shape.max_bytes, shape.page_bytes = indices, max_bytes, page_bytes
        if not cache_measure(&shape):
            raise ValueError(
                f"max_bytes={max_bytes} leaves no room for samples next to {8 * indices} bytes of "
                f"index for {indices} of them: raise max_bytes"
            )
        self.map_file(duplicate(fd), &shape)
        if is_new:
            self.make()

    def __dealloc__(self):
        cache_unmap(&self.table)

    cdef int map_file(self, int fd, cache_shape *shape) except -1:
        cdef void *base = mmap(NULL, shape.total_bytes, PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_NORESERVE, fd, 0)
        if base == MAP_FAILED:
            raise_mapping_error(fd, shape.total_bytes)
        cache_open(&self.table, <uint8_t *>base, fd, shape)
        return 0

    cdef int make(self) except -1:
        """Make the file a cache."""
        cdef int error = cache_make(&self.table)
        if error != 0:
            raise OSError(-error, f"no pages for the index of a cache ({errno_name(-error)})")
        self.owner = generation_now()
        return 0

    def find(self, uint64_t index):
        """
        Return a private copy of the sample of an index below `indices`, and count the look.

        Returns:
            The sample, or `MISSING`.

        Raises:
            WorkerBroken: What stands there was written by no process that keeps to the rules.
            BaseException: The error of building a pickled object again.
        """
        cdef cache_record record
        cdef cache_found found
        cdef object sample = MISSING
        if index < self.table.shape.indices and not cache_is_closed(&self.table):
            found = cache_look(&self.table, index, &record)
            if found == CACHE_BROKEN:
                self.broken(index, "its record is outside of the cache or another sample's")
            elif found != CACHE_MISS:
                sample = self.copy_out(index, &record)
        if sample is MISSING:
            cache_count(&self.table, 0, 1, 0, 0, 0)
        else:
            cache_count(&self.table, 1, 0, 0, 0, 0)
        return sample

    cdef int broken(self, uint64_t index, str what) except -1:
        """Refuse what stands in the cache, unless its pages were given back."""
        if cache_is_closed(&self.table):
            return 0
        raise WorkerBroken(
            f"the cached sample of index {index} cannot be read: {what}; shared memory was "
            "overwritten, perhaps by native code of the dataset"
        )

    cdef object copy_out(self, uint64_t index, const cache_record *record):
        """Copy a record out, and make the sample of the copy; `MISSING` if it is gone by now."""
        cdef bytes layout = PyBytes_FromStringAndSize(<const char *>record.layout,
                                                      record.head.layout_bytes)
        cdef Places places
        if checksum_of(&record.head, layout) != record.head.checksum:
            self.broken(index, "its layout does not match its checksum")
            return MISSING
        place_leaves(&places, NULL, <char *>record.payload, record.head.payload_bytes, layout,
                     record.head.payload_bytes)
        try:
            if cache_is_closed(&self.table):
                return MISSING
            return decode(&places, record.head.payload_bytes, layout)
        finally:
            drop_blocks(&places)

    def keep(self, uint64_t index, sample, has_room):
        """
        Keep a sample for all processes, if there is room and none did so before.

        Args:
            index: Below `indices`; of any other one nothing is kept.
            has_room: Called with a number of bytes before pages are added: may they be?

        Returns:
            A private copy of the sample, as `find` will return it. The sample itself may lie in
            the dataset's own memory, which the next one shares.

        Raises:
            Exception: The error of pickling a part of it, or of building it again.
        """
        cdef Encoder encoder = walked(self.nowhere, sample, values_alone=True)
        cdef uint64_t payload = 0
        cdef bytes layout
        layout = layout_of(encoder, &payload)
        copy = copy_of(encoder, payload, layout)
        if self.takes(index):
            keep_record(self, index, encoder, payload, layout, has_room)
        return copy

    def takes(self, uint64_t index):
        """Returns False if a sample of this index would not be kept, whatever room there is."""
        if index >= self.table.shape.indices or not cache_is_absent(&self.table, index):
            return False
        return not cache_is_closed(&self.table)

    cdef uint64_t find_room(self, uint64_t bytes_, has_room) except? 0:
        """Returns a place for a record; 0: there is none."""
        cdef uint64_t at = cache_place(&self.table, bytes_)
        cdef uint64_t wanted
        if at != 0:
            return at
        wanted = cache_wanted(&self.table, bytes_)
        if wanted == 0:
            return 0
        if not has_room(wanted):
            cache_count(&self.table, 0, 0, 0, 0, 1)
            return 0
        return self.add_piece(bytes_)

    cdef uint64_t add_piece(self, uint64_t bytes_) except? 0:
        """Take a piece and its pages, and return a place in it; 0: there is none any more."""
        cdef uint64_t at = 0
        cdef uint64_t length
        cdef int error = 0
        with nogil:
            length = cache_take(&self.table, bytes_, &at)
            if length > 0:
                error = cache_add_pages(&self.table, at, length)
        if error != 0:   # such as a full /dev/shm
            cache_count(&self.table, 0, 0, 0, 0, 1)
        if length == 0 or error != 0:
            return 0
        return cache_hold(&self.table, at, length, bytes_)

    def refuse(self, uint64_t index):
        """Note that a sample cannot be kept, so that no process tries again."""
        if index < self.table.shape.indices:
            cache_refuse(&self.table, index)

    def counts(self):
        """Sum what all processes did: hits, misses, entries, bytes, refused."""
        cdef uint64_t[CACHE_COUNTS] total
        cache_total(&self.table, total)
        return tuple([total[place] for place in range(CACHE_COUNTS)])

    @property
    def descriptor(self):
        """The file, open as long as this is alive."""
        return self.table.fd

    @property
    def most_bytes(self):
        """All that it may take, in bytes."""
        return self.table.shape.total_bytes

    @property
    def taken_bytes(self):
        """What of that has pages, in bytes."""
        return cache_taken(&self.table)

    @property
    def is_closed(self):
        """True if its maker has given it up."""
        return cache_is_closed(&self.table)

    def close(self):
        """
        Give it up, and its pages back at once: all processes fetch from now on.

        In a process that did not make it, or has a copy of it by fork, nothing happens.
        """
        if self.owner == generation_now() and not cache_is_closed(&self.table):
            cache_close(&self.table)

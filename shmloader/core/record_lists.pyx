# A file of records, mapped into this process, as a sequence: each read makes new objects of one
# record, so that no reference count lies in memory that processes share.
#
# Nobody writes to the file. What is read of it is checked all the same, against its length and
# against the sums of names, table and index: a file may have been cut off, or be another one. A
# block of the index is summed when it is first used, so that opening takes no longer for more
# records.


@cython.final
cdef class RecordFile:
    """
    A file of records that is not written to any more, mapped into this process.

    Attributes:
        count: Of its records.
        bytes: Its length.
        name: What errors call it.
    """

    cdef mapped *map          # NULL: closed
    cdef Alias alias          # of all of it, the base of arrays
    cdef int fd
    cdef platform_file file   # what it means
    cdef const BlockEntry *table
    cdef uint8_t *checked     # of each block of the index
    cdef tuple names

    cdef readonly Py_ssize_t count
    cdef readonly uint64_t bytes
    cdef readonly object name  # for errors
    cdef object __weakref__

    def __cinit__(self):
        self.fd = -1

    def __init__(self, int fd, name, uint64_t bytes, Py_ssize_t count, uint64_t names_at,
                 uint64_t names_bytes, names_sum, uint64_t table_at, table_sum):
        """Map a file; its descriptor belongs to this object if nothing is raised."""
        cdef int error = lease_map_file(fd, bytes, &self.map)
        if error != 0:
            raise OSError(-error, f"cannot map {bytes} bytes ({errno_name(-error)})", name)
        self.name, self.bytes, self.count = name, bytes, count
        self.alias = take_alias(&self.map.lease, <char *>self.map.base, bytes)
        self.read_table(table_at, table_sum)
        self.read_names(names_at, names_bytes, names_sum)
        self.fd, self.file = fd, platform_file_of(fd)

    def __dealloc__(self):
        self.close_descriptor()
        if self.map != NULL:
            lease_drop(&self.map.lease)
        free(self.checked)

    @property
    def descriptor(self):
        """Its descriptor here; None if it is closed, or a forked child has closed all of its."""
        return self.fd if self.fd >= 0 and platform_is_file(self.fd, self.file) else None

    def close(self):
        """Give up this hold on the memory; leaves that are alive keep it."""
        self.close_descriptor()
        self.alias = None
        if self.map != NULL:
            lease_drop(&self.map.lease)
            self.map = NULL

    @property
    def is_closed(self):
        """True after close()."""
        return self.map == NULL

    @property
    def taken_bytes(self):
        """What one in memory keeps there: nothing after close()."""
        return 0 if self.map == NULL else self.bytes

    @property
    def most_bytes(self):
        """The same: it does not grow."""
        return self.taken_bytes

    cdef void close_descriptor(self) noexcept:
        if self.fd >= 0:
            platform_close(self.fd, self.file)
        self.fd = -1

    cdef int read_names(self, uint64_t at, uint64_t length, object checksum) except -1:
        if at > self.bytes or length > self.bytes - at:
            raise ValueError(f"{self.name} is damaged: its names are beyond its end")
        if sum_of(self.map.base + at, length) != checksum:
            raise ValueError(f"{self.name} is damaged: its names do not match their checksum")
        names = decode_record(<char *>self.map.base + at, length, NULL, None, None, True)
        if type(names) is not list:
            raise ValueError(f"{self.name} is damaged: its names are not a list")
        self.names = tuple(names)
        return 0

    cdef int read_table(self, uint64_t at, object checksum) except -1:
        cdef uint64_t count = self.count
        cdef uint64_t blocks
        if self.count < 0 or count > self.bytes:   # each has a tag
            raise ValueError(f"{self.name} is damaged: {self.count} records in {self.bytes} bytes")
        blocks = (count + BLOCK_RECORDS - 1) >> BLOCK_SHIFT
        if blocks * sizeof(BlockEntry) > self.bytes:
            raise ValueError(f"{self.name} is damaged: {self.count} records in {self.bytes} bytes")
        if at % sizeof(int64_t) or at > self.bytes - blocks * sizeof(BlockEntry):
            raise ValueError(f"{self.name} is damaged: its table is beyond its end")
        if sum_of(self.map.base + at, blocks * sizeof(BlockEntry)) != checksum:
            raise ValueError(f"{self.name} is damaged: its table does not match its checksum")
        self.table = <const BlockEntry *>(self.map.base + at)
        self.checked = <uint8_t *>calloc(blocks + 1, 1)
        if self.checked == NULL:
            raise MemoryError(f"no memory for the marks of {blocks} blocks")
        return 0

    cdef const int64_t *find_block(self, Py_ssize_t number) except NULL:
        """Find the starts of a block's records, and check the block if it is used first."""
        cdef uint64_t at = self.table[number].at
        cdef uint64_t length = sizeof(int64_t)
        if not self.checked[number]:
            length *= 1 + min(self.count - (number << BLOCK_SHIFT), <Py_ssize_t>BLOCK_RECORDS)
            if at % sizeof(int64_t) or at > self.bytes or length > self.bytes - at:
                raise ValueError(f"{self.name} is damaged: its index is beyond its end")
            if sum_of(self.map.base + at, length) != self.table[number].checksum:
                raise ValueError(
                    f"{self.name} is damaged: its index does not match its checksum, from record "
                    f"{number << BLOCK_SHIFT} on"
                )
            self.checked[number] = True
        return <const int64_t *>(self.map.base + at)

    cpdef object read(self, Py_ssize_t number):
        """Make the object of a record."""
        cdef const int64_t *starts
        cdef uint64_t start, end
        cdef Alias alias = self.alias   # user code that unpickles may close the file
        if self.map == NULL:
            raise ValueError("this list was closed")
        if not 0 <= number < self.count:
            raise IndexError(f"no record {number} of {self.count}")
        starts = self.find_block(number >> BLOCK_SHIFT) + number % BLOCK_RECORDS
        start, end = starts[0], starts[1]
        if start > end or end > self.bytes:
            raise ValueError(f"{self.name} is damaged: record {number} is beyond its end")
        try:
            return decode_record(
                <char *>self.map.base + start, end - start, &self.map.lease, alias, self.names,
                not self.map.is_writable,
            )
        except DamagedRecord as error:
            raise ValueError(f"{self.name} is damaged: in record {number}, {error}") from None


cdef class RecordList:
    """Records of a file, as a sequence of objects that each read makes anew."""

    cdef RecordFile file
    cdef Py_ssize_t start
    cdef Py_ssize_t step
    cdef Py_ssize_t count

    def _hold(self, RecordFile file, part):
        """Be these records of a file: a range of their numbers."""
        if file is None:
            raise TypeError("a list without a file")
        self.file = file
        self.start, self.step, self.count = part.start, part.step, len(part)
        for number in (part[0], part[self.count - 1]) if self.count else ():
            if not 0 <= number < file.count:
                raise ValueError(f"{part} of {file.count} records")

    @property
    def _file(self):
        """The file, of which a list may be a part."""
        return self.file

    @property
    def _part(self):
        """The range of the numbers of its records."""
        return range(self.start, self.start + self.step * self.count, self.step)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        cdef Py_ssize_t number
        if isinstance(index, slice):
            return self.cut(index)
        if not PyIndex_Check(index):
            raise TypeError(
                f"{type(self).__name__} indices must be integers or slices, not "
                f"{type(index).__name__}"
            )
        number = PyNumber_AsSsize_t(index, IndexError)
        if number < 0:
            number += self.count
        if not 0 <= number < self.count:
            raise IndexError(f"{type(self).__name__} index out of range")
        return self.file.read(self.start + self.step * number)

    def __iter__(self):
        return map(self.file.read, self._part)

    cdef object cut(self, object part):
        """Make a list of some of the records, which shares the memory."""
        cdef RecordList made = type(self).__new__(type(self))
        made._hold(self.file, self._part[part])
        return made

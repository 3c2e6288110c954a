# The layout as it is written: tags, numbers and texts, one behind the other. decode.pyx reads it.

import zlib


@cython.internal
cdef class StreamWriter:
    cdef char *stream
    cdef size_t used
    cdef size_t capacity
    cdef bint is_record        # its numbers are numerals

    def __dealloc__(self):
        free(self.stream)

    @cython.final
    cdef char *extend(self, size_t count) except NULL:
        cdef size_t capacity = self.capacity
        cdef char *grown
        if self.used + count > capacity:
            capacity = 2 * capacity + count + 512
            grown = <char *>realloc(self.stream, capacity)
            if grown == NULL:
                raise MemoryError(f"no memory for a layout of {capacity} bytes")
            self.stream = grown
            self.capacity = capacity
        self.used += count
        return self.stream + self.used - count

    @cython.final
    cdef int put_tag(self, int tag) except -1:
        self.extend(1)[0] = <char>tag
        return 0

    @cython.final
    cdef int put_number(self, int64_t value) except -1:
        if self.is_record:
            return self.put_numeral(value)
        return self.put_fixed(value)

    @cython.final
    cdef int put_fixed(self, int64_t value) except -1:
        memcpy(self.extend(8), &value, 8)
        return 0

    @cython.final
    cdef int put_numeral(self, int64_t value) except -1:
        cdef char *start = self.extend(NUMERAL_MAX)
        self.used -= NUMERAL_MAX - write_numeral(start, value)
        return 0

    @cython.final
    cdef int put_double(self, double value) except -1:
        memcpy(self.extend(8), &value, 8)
        return 0

    @cython.final
    cdef int put_ordinal(self, int64_t number) except -1:
        cdef uint32_t ordinal = <uint32_t>number
        if number > UINT32_MAX:
            raise OverflowError(f"a batch of more than {UINT32_MAX} objects")
        memcpy(self.extend(4), &ordinal, 4)
        return 0

    @cython.final
    cdef int put_text(self, const char *text, Py_ssize_t length) except -1:
        self.put_number(length)
        memcpy(self.extend(length), text, length)
        return 0

    @cython.final
    cdef int put_bytes(self, int tag, bytes text) except -1:
        self.put_tag(tag)
        return self.put_text(PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))

    @cython.final
    cdef int put_checked(self, bytes text) except -1:
        """Write bytes and their checksum."""
        cdef uint32_t checksum = zlib.crc32(text)
        self.put_text(PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
        memcpy(self.extend(4), &checksum, 4)
        return 0

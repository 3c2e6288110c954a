# Integers in as few bytes as they need.

from libc.stdint cimport int64_t, uint8_t

cdef enum:
    NUMERAL_MAX = 10   # bytes of the longest

cdef size_t write_numeral(char *to, int64_t value) noexcept
cdef size_t read_numeral(const uint8_t *start, size_t length, int64_t *value) noexcept

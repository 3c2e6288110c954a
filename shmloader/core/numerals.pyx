# Integers in as few bytes as they need: seven bits in each, the low ones first, and the sign in the
# lowest bit of all. So -64 to 63 take one byte, and any number of 64 bits at most ten.

cdef enum:
    NUMERAL_MAX = 10   # bytes of the longest


cdef size_t write_numeral(char *to, int64_t value) noexcept:
    """Write a number; returns how many bytes it took."""
    cdef uint64_t rest = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
    cdef size_t count = 0
    while rest >= 0x80:
        to[count] = <char>(rest | 0x80)
        rest >>= 7
        count += 1
    to[count] = <char>rest
    return count + 1


cdef size_t read_numeral(const uint8_t *start, size_t length, int64_t *value) noexcept:
    """Read a number; returns how many bytes it took, 0 if it does not end in time."""
    cdef uint64_t found = 0
    cdef size_t count = 0
    cdef uint8_t byte
    while count < length and count < NUMERAL_MAX:
        byte = start[count]
        found |= <uint64_t>(byte & 0x7F) << (7 * count)
        count += 1
        if byte < 0x80:
            value[0] = <int64_t>(found >> 1) ^ -<int64_t>(found & 1)
            return count
    return 0

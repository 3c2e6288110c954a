# The state of a Mersenne Twister of torch's as few bytes: it keeps 32 bits in each 64.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy


def pack_twister(state, bytes mark, Py_ssize_t head_bytes, Py_ssize_t words):
    """
    Pack a generator's state, which numpy would take four times as long for.

    Args:
        state: A tensor (bytes,) uint8 on the CPU, contiguous.
        mark: What the result begins with.
        head_bytes: Kept as they are.
        words: Numbers of 64 bits behind the head, of which the low halves are kept; of what follows
            them, trailing zeros are left out.

    Raises:
        ValueError: The state is shorter than that.
    """
    cdef Py_ssize_t size = state.numel(), end = head_bytes + 8 * words
    cdef Py_ssize_t mark_bytes = len(mark), number
    cdef const char *start = <const char *><size_t>state.data_ptr()
    cdef uint64_t wide
    cdef uint32_t narrow
    if size < end:
        raise ValueError(f"{size} bytes are no state of {words} words")
    while size > end and start[size - 1] == 0:
        size -= 1
    packed = PyBytes_FromStringAndSize(NULL, mark_bytes + head_bytes + 4 * words + size - end)
    cdef char *to = PyBytes_AS_STRING(packed)
    memcpy(to, PyBytes_AS_STRING(mark), mark_bytes)
    memcpy(to + mark_bytes, start, head_bytes)
    to += mark_bytes + head_bytes
    for number in range(words):
        memcpy(&wide, start + head_bytes + 8 * number, 8)
        narrow = <uint32_t>wide
        memcpy(to + 4 * number, &narrow, 4)
    memcpy(to + 4 * words, start + end, size - end)
    return packed

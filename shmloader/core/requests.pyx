# Requests as bytes: indices as int64, anything else as a pickle. Where draws are seeded by the
# batch, two numbers stand before them: the epoch's, and the batch's in its epoch.

import pickle
from functools import partial
from multiprocessing.reduction import ForkingPickler

from shmloader.errors import is_own

cdef struct Request:
    int kind
    char *start
    uint64_t length


class Unreadable:
    """
    Stands for a request whose objects have raised when they were made again.

    Attributes:
        error: What they raised; the answer is this error.
    """

    __slots__ = ("error",)

    def __init__(self, error):
        self.error = error


cdef object write_request(index, tuple numbers, Request *request):
    """Describe a request and its numbers, if any; returns what keeps their bytes alive."""
    cdef bytes kept
    if type(index) is Indices:
        return describe_indices(request, index, numbers)
    if type(index) is list and len(index) > 0 and type(index[0]) is int:
        kept = pack_ints(index, numbers)
        if kept is not None:
            return describe(request, REQUEST_INDICES, kept)
    elif type(index) is int:
        kept = pack_ints([index], numbers)
        if kept is not None:
            return describe(request, REQUEST_INDEX, kept)
    elif type(index) is list and len(index) > 0 and are_nones(<list>index):
        return describe(request, REQUEST_NONES, pack_ints([len(index)], numbers))
    kept = pack_ints([], numbers) + bytes(ForkingPickler.dumps(index))
    return describe(request, REQUEST_PICKLED, kept)


cdef bint are_nones(list index) noexcept:
    """Returns True if there is nothing else in a list; no object of it is compared."""
    cdef object item
    for item in index:
        if item is not None:
            return False
    return True


cdef object describe_indices(Request *request, Indices indices, tuple numbers):
    """Describe planned indices where they stand; after numbers they are copied."""
    cdef bytes kept
    if numbers is not None:
        kept = pack_ints([], numbers) + (<char *>indices.start)[:8 * indices.count]
        return describe(request, REQUEST_INDICES, kept)
    request.kind = REQUEST_INDICES
    request.start = <char *>indices.start
    request.length = 8 * indices.count
    return indices


cdef bytes describe(Request *request, int kind, bytes kept):
    request.kind = kind
    request.start = PyBytes_AS_STRING(kept)
    request.length = PyBytes_GET_SIZE(kept)
    return kept


cdef tuple read_numbers(const char *start):
    """Read the numbers that stand before a request."""
    return <int64_t>words_load(start), <int64_t>words_load(start + 8)


cdef object read_request(uint32_t kind, const char *start, uint64_t length):
    cdef uint64_t i
    if kind == REQUEST_INDICES:
        return [<int64_t>words_load(start + 8 * i) for i in range(length // 8)]
    if kind == REQUEST_INDEX:
        return <int64_t>words_load(start)
    if kind == REQUEST_NONES:
        return [None] * <int64_t>words_load(start)
    return read_pickled(PyBytes_FromStringAndSize(start, length))


cdef object read_pickled(bytes pickled):
    """Read a request of the user's own objects; `Unreadable` if these raise."""
    cdef object read = partial(pickle.loads, pickled)
    try:
        return read()
    except BaseException as error:
        if not is_own(error, read):
            raise
        return Unreadable(error)

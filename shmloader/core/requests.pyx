# Requests as bytes: indices as int64, anything else as a pickle.

import pickle
from multiprocessing.reduction import ForkingPickler

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow
from libc.stdint cimport int64_t, uint32_t, uint64_t

from shmloader.core.csrc cimport (
    REQUEST_INDEX, REQUEST_INDICES, REQUEST_NONES, REQUEST_PICKLED, words_load,
)


cdef object write_request(index, Request *request):
    """Describe a request's bytes; returns what keeps them alive."""
    cdef bytes kept
    if type(index) is list and len(index) > 0 and type(index[0]) is int:
        kept = pack_ints(index)
        if kept is not None:
            return describe(request, REQUEST_INDICES, kept)
    elif type(index) is int:
        kept = pack_ints([index])
        if kept is not None:
            return describe(request, REQUEST_INDEX, kept)
    elif type(index) is list and len(index) > 0 and index.count(None) == len(index):
        return describe(request, REQUEST_NONES, pack_ints([len(index)]))
    return describe(request, REQUEST_PICKLED, bytes(ForkingPickler.dumps(index)))


cdef bytes describe(Request *request, int kind, bytes kept):
    request.kind = kind
    request.start = PyBytes_AS_STRING(kept)
    request.length = PyBytes_GET_SIZE(kept)
    return kept


cdef bytes pack_ints(list values):
    """Pack exact ints as int64; None if one is something else or does not fit."""
    cdef Py_ssize_t count = len(values), i
    cdef bytes packed = PyBytes_FromStringAndSize(NULL, 8 * count)
    cdef int64_t *numbers = <int64_t *>PyBytes_AS_STRING(packed)
    cdef int overflow = 0
    for i in range(count):
        if type(values[i]) is not int:
            return None
        numbers[i] = PyLong_AsLongLongAndOverflow(values[i], &overflow)
        if overflow:
            return None
    return packed


cdef object read_request(uint32_t kind, const char *start, uint64_t length):
    cdef uint64_t i
    if kind == REQUEST_INDICES:
        return [<int64_t>words_load(start + 8 * i) for i in range(length // 8)]
    if kind == REQUEST_INDEX:
        return <int64_t>words_load(start)
    if kind == REQUEST_NONES:
        return [None] * <int64_t>words_load(start)
    return pickle.loads(PyBytes_FromStringAndSize(start, length))

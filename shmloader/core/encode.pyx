# A batch into a slot.
#
# The layout is one stream of nodes, each a tag and what the tag says, in the order of a walk over
# the batch. A leaf's node holds the offset of its bytes in the payload. Leaves that were collated
# in the slot are in place already; the walk notes the others, and one pass copies them in
# afterwards, so that pages are asked for once and leaves that overlap in memory stay aliases of
# each other. Objects that can be met twice are numbered alike in both walks: that is the memo.
#
# Nothing is pickled but what no node can say, by the `pickling` module that the worker hands in,
# and the names of classes and dtypes, once each: the trainer keeps what it has read of those.

import copyreg
import pickle
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from multiprocessing.reduction import ForkingPickler
from types import BuiltinFunctionType, FunctionType, ModuleType, NoneType

import numpy

cimport cython
cimport numpy as cnp
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.float cimport PyFloat_AS_DOUBLE
from cpython.long cimport PyLong_AsLongLongAndOverflow
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, qsort, realloc
from libc.string cimport memcpy

from shmloader.core.capi cimport Py_EnterRecursiveCall, Py_LeaveRecursiveCall
from shmloader.core.csrc cimport (
    CACHE_LINE, STEP, STEP_COPY, DLTensor, copy_bytes, round_up, slot_answer,
)

cdef object generic = numpy.generic
cdef char foreign_byteorder = c">" if sys.byteorder == "little" else c"<"
cdef dict names_written = {}   # class, function or dtype -> its pickle
cdef dict is_reducible = {}    # type -> whether its instances are taken apart rather than pickled

cdef struct Source:
    char *start
    uint64_t length
    size_t patch      # where in the stream the offset stands
    uint64_t offset


cdef int by_start(const void *a, const void *b) noexcept nogil:
    cdef const Source *x = <const Source *>a
    cdef const Source *y = <const Source *>b
    if x.start != y.start:
        return 1 if x.start > y.start else -1
    return (x.length < y.length) - (x.length > y.length)


cdef bint is_builtin_function(object value):
    # A method such as [].append is of the same type, but its pickle holds what it is bound to.
    if not isinstance(value, BuiltinFunctionType):
        return False
    return isinstance(value.__self__, (ModuleType, NoneType))


cdef bint takes_apart(object kind):
    """Returns True if a type's instances travel as __reduce_ex__ parts instead of a pickle."""
    cdef object known = is_reducible.get(kind)
    if known is None:
        known = (
            (issubclass(kind, (tuple, Mapping, Sequence)) or is_dataclass(kind))
            and kind not in copyreg.dispatch_table
            and kind not in ForkingPickler._extra_reducers
        )
        is_reducible[kind] = known
    return known


@cython.final
@cython.internal
cdef class Encoder:
    cdef char *stream
    cdef size_t used
    cdef size_t capacity
    cdef Source *sources
    cdef size_t source_count
    cdef size_t source_capacity
    cdef uint64_t pickled_bytes
    cdef list kept
    cdef dict memo
    cdef SlotMemory memory
    cdef object dumps

    def __cinit__(self, SlotMemory memory, dumps):
        self.memory = memory
        self.dumps = dumps
        self.kept = []
        self.memo = {}

    def __dealloc__(self):
        free(self.stream)
        free(self.sources)

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

    cdef int put_tag(self, int tag) except -1:
        self.extend(1)[0] = <char>tag
        return 0

    cdef int put_number(self, int64_t value) except -1:
        memcpy(self.extend(8), &value, 8)
        return 0

    cdef int put_text(self, int tag, const char *text, Py_ssize_t length) except -1:
        self.put_tag(tag)
        self.put_number(length)
        memcpy(self.extend(length), text, length)
        return 0

    cdef int put_bytes(self, int tag, bytes text) except -1:
        return self.put_text(tag, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))

    cdef int put_source(self, char *start, uint64_t length) except -1:
        """Write where the bytes will lie: known if made in the slot, otherwise patched in."""
        cdef size_t capacity
        cdef Source *grown
        cdef int64_t offset = self.memory.offset_of(start, length)
        if length == 0 or offset >= 0:
            return self.put_number(max(offset, 0))
        if self.source_count == self.source_capacity:
            capacity = 2 * self.source_capacity + 16
            grown = <Source *>realloc(self.sources, capacity * sizeof(Source))
            if grown == NULL:
                raise MemoryError(f"no memory for {capacity} leaves")
            self.sources = grown
            self.source_capacity = capacity
        self.sources[self.source_count] = Source(start, length, self.used, 0)
        self.source_count += 1
        return self.put_number(0)

    cdef bint met_before(self, object value) except -1:
        """Write a reference if the object stands in the stream already; otherwise number it."""
        cdef object key = <size_t><void *>value
        cdef object number = self.memo.get(key)
        if number is None:
            self.memo[key] = len(self.memo)
            return False
        self.put_tag(TAG_AGAIN)
        self.put_number(number)
        return True

    cdef int put(self, object value) except -1:
        cdef object kind = type(value)
        if kind is Tensor:
            self.put_tensor(value)
        elif kind is ndarray:
            self.put_array(value)
        elif value is None:
            self.put_tag(TAG_NONE)
        elif kind is int:
            self.put_int(value)
        elif kind is float:
            self.put_tag(TAG_FLOAT)
            (<double *>self.extend(8))[0] = PyFloat_AS_DOUBLE(value)
        elif kind is str:
            self.put_str(value)
        elif kind is bytes:
            self.put_bytes(TAG_BYTES, value)
        elif kind is bool:
            self.put_tag(TAG_TRUE if value else TAG_FALSE)
        elif kind is complex:
            self.put_tag(TAG_COMPLEX)
            (<double *>self.extend(8))[0] = value.real
            (<double *>self.extend(8))[0] = value.imag
        else:
            Py_EnterRecursiveCall(b" while a batch is written")
            try:
                self.put_container(value, kind)
            finally:
                Py_LeaveRecursiveCall()
        return 0

    cdef int put_container(self, object value, object kind) except -1:
        if kind is list:
            return self.put_list(value)
        if kind is dict:
            return self.put_dict(value)
        if kind is tuple:
            return self.put_tuple(value)
        if isinstance(value, (type, FunctionType)) or is_builtin_function(value):
            return self.put_named(value)
        if issubclass(kind, generic) and kind.__module__ == "numpy":
            return self.put_scalar(value)
        if takes_apart(kind):
            return self.put_reduced(value)
        return self.put_pickled(value)

    cdef int put_int(self, object value) except -1:
        cdef int overflow = 0
        cdef int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow)
        if overflow:
            length = (value.bit_length() + 8) // 8
            return self.put_bytes(TAG_BIG_INT, value.to_bytes(length, "little", signed=True))
        self.put_tag(TAG_INT)
        return self.put_number(number)

    cdef int put_str(self, object value) except -1:
        return self.put_bytes(TAG_STR, value.encode("utf-8", "surrogatepass"))

    cdef int put_list(self, list value) except -1:
        cdef object item
        if self.met_before(value):
            return 0
        self.put_tag(TAG_LIST)
        self.put_number(len(value))
        for item in value:
            self.put(item)
        return 0

    cdef int put_tuple(self, tuple value) except -1:
        cdef object item
        self.put_tag(TAG_TUPLE)
        self.put_number(len(value))
        for item in value:
            self.put(item)
        return 0

    cdef int put_dict(self, dict value) except -1:
        cdef object key, item
        if self.met_before(value):
            return 0
        self.put_tag(TAG_DICT)
        self.put_number(len(value))
        for key, item in value.items():
            self.put(key)
            self.put(item)
        return 0

    cdef int put_tensor(self, object tensor) except -1:
        cdef DLTensor is_
        cdef uint64_t item_bytes
        if not plain_tensor(tensor, &is_):
            return self.put_pickled(tensor)
        if self.met_before(tensor):
            return 0
        self.put_tag(TAG_TENSOR)
        self.put_tag(is_.dtype.code)
        self.put_tag(is_.dtype.bits)
        self.put_tag(is_.ndim)
        item_bytes = is_.dtype.bits // 8
        self.put_source(
            tensor_start(&is_), span_elements(is_.ndim, is_.shape, is_.strides) * item_bytes
        )
        if is_.ndim > 0:
            memcpy(self.extend(8 * is_.ndim), is_.shape, 8 * is_.ndim)
            memcpy(self.extend(8 * is_.ndim), is_.strides, 8 * is_.ndim)
        return 0

    cdef int put_array(self, cnp.ndarray array) except -1:
        cdef int axis
        if array.descr.hasobject:
            return self.put_pickled(array)
        if self.met_before(array):
            return 0
        if not cnp.PyArray_IS_C_CONTIGUOUS(array) and not cnp.PyArray_IS_F_CONTIGUOUS(array):
            array = numpy.ascontiguousarray(array)
            self.kept.append(array)
        if array.descr.byteorder == foreign_byteorder:
            # As pickled by torch's queues: the same values, in the machine's order.
            array = array.astype(array.dtype.newbyteorder("="))
            self.kept.append(array)
        self.put_tag(TAG_ARRAY)
        self.put_dtype(array.descr)
        self.put_tag(not cnp.PyArray_IS_C_CONTIGUOUS(array))
        self.put_tag(array.ndim)
        self.put_source(<char *>cnp.PyArray_DATA(array), cnp.PyArray_NBYTES(array))
        for axis in range(array.ndim):
            self.put_number(array.shape[axis])
        return 0

    cdef int put_dtype(self, cnp.dtype dtype) except -1:
        """Write a native number type by its number, any other by its name."""
        if dtype.num < cnp.NPY_OBJECT and dtype.byteorder in (c"=", c"|"):
            self.put_tag(TAG_INT)
            return self.put_number(dtype.num)
        return self.put_named(dtype)

    cdef int put_scalar(self, object value) except -1:
        cdef cnp.ndarray array = numpy.asarray(value)
        if array.descr.hasobject:
            return self.put_pickled(value)
        self.put_tag(TAG_SCALAR)
        self.put_dtype(array.descr)
        return self.put_bytes(TAG_BYTES, array.tobytes())

    cdef int put_named(self, object value) except -1:
        cdef bytes name = names_written.get(value)
        if name is None:
            name = pickle.dumps(value, 5)
            name += zlib.crc32(name).to_bytes(4, "little")
            names_written[value] = name
        return self.put_bytes(TAG_NAMED, name)

    cdef int put_reduced(self, object value) except -1:
        """Write an object as the parts that pickle would build it from, natively."""
        cdef object parts = value.__reduce_ex__(4)
        cdef list items
        cdef dict pairs
        if type(parts) is not tuple or len(parts) > 5:
            return self.put_pickled(value)
        if (<size_t><void *>value) in self.memo:
            return 0 if self.met_before(value) else -1
        self.kept.append(parts)
        self.put_tag(TAG_REDUCED)
        self.put_named(parts[0])
        self.put(parts[1])
        self.met_before(value)
        self.put(parts[2] if len(parts) > 2 else None)
        items = list(parts[3]) if len(parts) > 3 and parts[3] is not None else []
        pairs = dict(parts[4]) if len(parts) > 4 and parts[4] is not None else {}
        self.kept.append((items, pairs))
        self.put_list(items)
        return self.put_dict(pairs)

    cdef int put_pickled(self, object value) except -1:
        """Write what no node can say as a pickle whose buffers lie in the payload."""
        cdef bytes pickled
        cdef list buffers
        cdef object part
        if self.met_before(value):
            return 0
        pickled, buffers = self.dumps(value)
        self.pickled_bytes += len(pickled)
        self.put_tag(TAG_PICKLED)
        self.put_number(len(buffers))
        self.put_number(zlib.crc32(pickled))
        self.put_part(pickled)
        for part in buffers:
            self.put_part(part)
        return 0

    cdef int put_part(self, object part) except -1:
        cdef Py_buffer view
        PyObject_GetBuffer(part, &view, PyBUF_SIMPLE)
        try:
            self.kept.append(part)
            self.put_number(view.len)
            self.put_source(<char *>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)
        return 0

    cdef uint64_t place_sources(self, uint64_t cursor):
        """Give every source its offset, overlapping ones a common stretch; returns the end."""
        cdef size_t i
        cdef char *stretch_start = NULL
        cdef char *stretch_end = NULL
        cdef uint64_t stretch_offset = 0
        cdef Source *source
        qsort(self.sources, self.source_count, sizeof(Source), by_start)
        for i in range(self.source_count):
            source = &self.sources[i]
            if source.start >= stretch_end:
                cursor = round_up(cursor, CACHE_LINE)
                stretch_start, stretch_end = source.start, source.start
                stretch_offset = cursor
            source.offset = stretch_offset + (source.start - stretch_start)
            if source.start + source.length > stretch_end:
                stretch_end = source.start + source.length
            cursor = stretch_offset + (stretch_end - stretch_start)
        return cursor

    cdef void copy_sources(self, char *slot) noexcept nogil:
        cdef size_t i
        cdef uint64_t total = 0
        cdef Source *source
        for i in range(self.source_count):
            total += self.sources[i].length
        for i in range(self.source_count):
            source = &self.sources[i]
            copy_bytes(slot + source.offset, source.start, source.length, total)
            memcpy(self.stream + source.patch, &source.offset, 8)

    cdef int finish(self, slot_answer *draft) except -1:
        """Copy what is not in the slot yet, write the layout behind it and describe both."""
        cdef uint64_t payload = self.place_sources(self.memory.cursor)
        cdef uint64_t layout = round_up(payload, CACHE_LINE)
        cdef char *slot
        self.memory.check_canary()
        self.memory.need(layout + self.used)
        slot = self.memory.start
        with nogil:
            self.copy_sources(slot)
            STEP("write: payload")
            STEP_COPY("write: half a layout", slot + layout, self.stream, self.used)
            STEP("write: layout")
        draft.payload_bytes = payload
        draft.layout_offset = layout
        draft.layout_bytes = self.used
        draft.pickled_bytes = self.pickled_bytes
        self.memory.cursor = layout + self.used
        return 0


cdef int encode(SlotMemory memory, batch, dumps) except -1:
    """Write a batch into the slot in hand, and describe its place in the draft of the answer."""
    cdef Encoder encoder = Encoder.__new__(Encoder, memory, dumps)
    encoder.put(batch)
    return encoder.finish(&memory.draft)

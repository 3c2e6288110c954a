# A batch into a slot, or one record into a buffer (records.pyx).
#
# The layout is one stream of nodes, each a tag and what the tag says, in the order of a walk over
# the batch. A leaf's node holds the offset of its bytes in the payload. Leaves that were collated
# in the slot are in place already; the walk notes the others, and one pass copies them in
# afterwards, so that pages are asked for once and leaves that overlap in memory stay aliases of
# each other. Objects that can be met twice are numbered, and stand in the stream once. A text to
# which nobody but its container refers cannot be met twice, so most texts need no number.
#
# What no node can say is pickled by one pickler for the whole batch, which asks for the number of
# each object that it meets. So an object is one in the trainer too, wherever it was met first: in
# a list or in a pickle. If something refers to an object that the trainer cannot have yet, because
# it is built from what is being written, the walk begins again, with one pickle of the batch. Only
# short texts are not told to the pickler: to ask it for one takes longer than to write it again.

import copyreg
import pickle
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from multiprocessing.reduction import ForkingPickler
from types import BuiltinFunctionType, FunctionType, ModuleType, NoneType

import numpy
import torch
from torch.nn.utils.rnn import PackedSequence

import shmloader.core.pickling as pickling
from shmloader.core.kinds import reducer_of

cimport cython
cimport numpy as cnp
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.float cimport PyFloat_AS_DOUBLE
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.ref cimport Py_REFCNT
from libc.stdint cimport UINT32_MAX, int64_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from shmloader.core.capi cimport (
    NPY_HALF, PyUnicode_GET_LENGTH, PyUnicode_IS_COMPACT_ASCII, ascii_of, encode_text,
)
from shmloader.core.csrc cimport (
    ANSWER_CYCLIC, CACHE_LINE, STEP, STEP_COPY, DLTensor, round_up, slot_answer,
)

cdef object generic = numpy.generic
cdef object new_object = copyreg.__newobj__
cdef object UntypedStorage = torch.UntypedStorage
cdef frozenset ATOMS = frozenset([int, float, bool, NoneType])   # are never numbered
cdef char foreign_byteorder = c">" if sys.byteorder == "little" else c"<"

cdef enum:
    # A storage may have been resized under its tensors. To ask takes as long as to copy 4 KiB, so
    # it is asked for these alone: a given-up storage begins at address 0.
    LARGE_BYTES = 4096
    LOW_ADDRESS = 1 << 30
    LARGE_TEXT = 4096   # of a str or bytes: costs more to write twice than to ask a pickler for
    OWN_REFERENCES = 2  # to an item: its container's, and that of the walk over this
    # Of a list of records. Each process that reads it has its names, so there cannot be too many.
    NAMES_MAX = 4096
    NAME_LENGTH_MAX = 256
    RECORD_UNIT_MAX = 16   # what no item of a number type is longer than
    LARGE_LEAF = 1024      # of a record: begins on a cache line
    DENSE = 2              # elements between a tensor's first and last, for each of its own


DEPTH_MAX = DEPTH
cdef object OWN_PARTS = object()


class _Unfinished(Exception):
    """An object is referred to that the trainer cannot have yet."""


cdef bint is_builtin_function(object value):
    # A method such as [].append is of the same type, but its pickle holds what it is bound to.
    if not isinstance(value, BuiltinFunctionType):
        return False
    return isinstance(value.__self__, (ModuleType, NoneType))


cdef object taker_of(object kind):
    """
    Returns what takes instances of a type apart, whose parts travel instead of a pickle.

    OWN_PARTS: they do so themselves. None: they are pickled.
    """
    if kind in copyreg.dispatch_table or kind in ForkingPickler._extra_reducers:
        return None
    return reducer_of(kind) or (OWN_PARTS if is_reducible(kind) else None)


cdef bint is_reducible(object kind):
    """Returns True if a type's own __reduce_ex__ parts are to travel instead of a pickle."""
    # A packed sequence has two tensors, of which one has to stay on the CPU: its own to() knows
    # which, and the copies to a device, which move the tensors of all containers, do not.
    if issubclass(kind, PackedSequence):
        return False
    return issubclass(kind, (tuple, Mapping, Sequence)) or is_dataclass(kind)


cdef inline bint is_in_memory(object storage):
    return storage.device.type == "cpu" and storage.nbytes() > 0


cdef bytes name_of(object value):
    """The name by which a class or function is found; None if it is to be found under no name."""
    cdef object module = getattr(value, "__module__", None)
    cdef object name = getattr(value, "__qualname__", None)
    cdef object found
    if type(module) is not str or type(name) is not str or type(value) in copyreg.dispatch_table:
        return None
    found = sys.modules.get(module)
    for step in name.split("."):
        found = getattr(found, step, None)
    return f"{module}\n{name}".encode() if found is value else None


cdef bint is_described_by_text(cnp.dtype dtype):
    """Returns True if its text is all of a type that is no native number type."""
    return (
        dtype.kind in (c"S", c"U", c"V", c"M", c"m")
        and dtype.num <= NPY_HALF
        and (<object>dtype).names is None
        and dtype.byteorder in (c"=", c"|")
        and (dtype.kind != c"V" or (<object>dtype).type is numpy.void)
    )


cdef inline bint are_all(object items, object kind):
    """Returns True if a list or tuple has items, and all are of exactly this type."""
    cdef object item
    for item in items:
        if type(item) is not kind:
            return False
    return len(items) > 0


cdef bint are_short(object items) except -1:
    """Returns True if all exact ints of a list or tuple fit into 64 bits."""
    cdef object item
    cdef int overflow = 0
    for item in items:
        PyLong_AsLongLongAndOverflow(item, &overflow)
        if overflow:
            return False
    return True


cdef inline uint64_t unit_for(uint64_t item_bytes, uint64_t length) noexcept:
    """Returns the alignment of a record's leaf: of its items, or a cache line if it is large."""
    cdef uint64_t unit = item_bytes & (0 - item_bytes)   # the largest power of two that divides it
    if length >= LARGE_LEAF:
        return CACHE_LINE
    return max(<uint64_t>1, min(unit, <uint64_t>RECORD_UNIT_MAX))


cdef inline bint is_small_text(object value, object kind):
    if kind is str:
        return PyUnicode_GET_LENGTH(value) < LARGE_TEXT
    return kind is bytes and PyBytes_GET_SIZE(value) < LARGE_TEXT


cdef inline bint is_number_type(int64_t number) noexcept:
    return 0 <= number < cnp.NPY_OBJECT or number == NPY_HALF


cdef inline int64_t number_of_pickled(int64_t number) noexcept:
    """What is known of an object with that number of which the pickler knows too; and back."""
    return INSIDE - 1 - number


# A container that is being written, and that around it.
cdef struct Open:
    const Open *outer
    int64_t number


@cython.final
@cython.internal
cdef class Encoder:
    cdef char *stream
    cdef size_t used
    cdef size_t capacity
    cdef Sources sources
    cdef Stretches stretches
    cdef uint64_t joined_bytes   # as many at the payload's start are one stretch
    cdef uint64_t pickled_bytes
    cdef list kept
    cdef Numbers numbers
    cdef int64_t numbered      # objects so far
    cdef int64_t leaves        # beside the pickle that is being made
    cdef int depth
    cdef const Open *open      # the container that is being written
    cdef bint is_cyclic        # something refers to a container around it
    cdef dict takers           # type -> taker_of() it
    cdef SlotMemory memory     # None: a record is written
    cdef bint is_record
    cdef dict names            # of a list of records: key -> its number; or None
    cdef bint values_alone     # readers may come when this process is gone
    cdef object pickler        # of this batch; None until something has to be pickled

    def __cinit__(self, SlotMemory memory, bint values_alone=False, dict names=None):
        self.memory = memory
        self.is_record = memory is None
        self.values_alone = values_alone
        self.names = names
        # So that a small batch need not note its leaves.
        if memory is not None and memory.cursor <= memory.policy.shared_bytes:
            self.joined_bytes = memory.cursor
        self.kept = []
        self.takers = {}

    def __dealloc__(self):
        free(self.stream)
        free(self.sources.items)
        free(self.stretches.items)
        forget_numbers(&self.numbers)

    cdef int begin_again(self) except -1:
        """Forget all that was written."""
        self.used = self.sources.count = self.stretches.count = 0
        self.pickled_bytes = 0
        self.numbered = self.depth = 0
        self.open, self.is_cyclic = NULL, False
        self.pickler = None
        forget_numbers(&self.numbers)
        return 0

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
        if self.is_record:
            return self.put_numeral(value)
        return self.put_fixed(value)

    cdef int put_fixed(self, int64_t value) except -1:
        memcpy(self.extend(8), &value, 8)
        return 0

    cdef int put_numeral(self, int64_t value) except -1:
        cdef char *start = self.extend(NUMERAL_MAX)
        self.used -= NUMERAL_MAX - write_numeral(start, value)
        return 0

    cdef int put_text(self, const char *text, Py_ssize_t length) except -1:
        self.put_number(length)
        memcpy(self.extend(length), text, length)
        return 0

    cdef int put_bytes(self, int tag, bytes text) except -1:
        self.put_tag(tag)
        return self.put_text(PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))

    cdef int64_t offset_of(self, const char *start, uint64_t length) noexcept:
        """Returns the offset of bytes that were made in the slot, or -1."""
        return -1 if self.is_record else self.memory.offset_of(start, length)

    cdef int put_source(self, char *start, uint64_t length, uint64_t item_bytes) except -1:
        """Write where the bytes will lie: known if made in the slot, otherwise patched in."""
        cdef int64_t offset = self.offset_of(start, length)
        cdef uint64_t unit = CACHE_LINE
        if length == 0 or offset >= 0:
            if length > 0 and <uint64_t>offset >= self.joined_bytes:
                add_stretch(&self.stretches, offset, length)
            return self.put_fixed(max(offset, 0))
        if self.is_record:
            unit = unit_for(item_bytes, length)
        add_source(&self.sources, start, length, self.used, unit)
        return self.put_fixed(0)

    cdef int64_t *known(self, object value) except NULL:
        return number_at(&self.numbers, <void *>value)

    cdef int put_own_number(self) except -1:
        """Number the object that begins here."""
        if not self.is_record:
            self.put_ordinal(self.numbered)
        self.numbered += 1
        return 0

    cdef int put_ordinal(self, int64_t number) except -1:
        cdef uint32_t ordinal = <uint32_t>number
        if number > UINT32_MAX:
            raise OverflowError(f"a batch of more than {UINT32_MAX} objects")
        memcpy(self.extend(4), &ordinal, 4)
        return 0

    cdef bint begin(self, int tag, object value) except -1:
        """
        Begin the node of an object that can be met twice.

        Returns False if it was met before: then a reference to it was written instead.
        """
        cdef int64_t *known = self.known(value)
        if known[0] != ABSENT:
            self.put_again(value, known[0])
            return False
        known[0] = self.numbered
        self.put_tag(tag)
        self.put_own_number()
        return True

    cdef int put_again(self, object value, int64_t known) except -1:
        """Write a reference to an object that was met before."""
        if known == UNFINISHED:
            raise _Unfinished()
        if known == INSIDE:
            return self.put_pickled(value)
        if known < 0:
            known = number_of_pickled(known)
        self.note_reference(known)
        self.put_tag(TAG_AGAIN)
        return self.put_ordinal(known)

    cdef void note_reference(self, int64_t number) noexcept:
        """Note that the object with a number is met again."""
        cdef const Open *around = self.open
        while around != NULL:
            if around.number == number:
                self.is_cyclic = True
                return
            around = around.outer

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
            self.put_double(PyFloat_AS_DOUBLE(value))
        elif kind is str:
            self.put_str(value)
        elif kind is bytes:
            self.put_raw(value)
        elif kind is bool:
            self.put_tag(TAG_TRUE if value else TAG_FALSE)
        elif kind is complex:
            self.put_tag(TAG_COMPLEX)
            self.put_double(value.real)
            self.put_double(value.imag)
        elif kind is list or kind is dict or kind is tuple:
            self.put_container(value, kind)
        elif isinstance(value, (type, FunctionType)) or is_builtin_function(value):
            self.put_named(value)
        elif issubclass(kind, generic) and kind.__module__ == "numpy":
            self.put_scalar(value)
        else:
            self.put_container(value, kind)
        return 0

    cdef int put_whole(self, object value) except -1:
        """Write a batch or a record; as one pickle if it refers to what is not there yet."""
        try:
            return self.put(value)
        except _Unfinished:
            self.begin_again()
        self.is_cyclic = True   # only a container around it is unfinished
        return self.put_pickled(value)

    cdef int put_double(self, double value) except -1:
        memcpy(self.extend(8), &value, 8)
        return 0

    cdef int put_container(self, object value, object kind) except -1:
        cdef Open here = Open(self.open, self.numbered)   # which is its number if it is new
        if self.depth == DEPTH:
            raise RecursionError(f"nested deeper than the {DEPTH} levels that a batch may have")
        self.depth += 1
        self.open = &here
        if kind is list:
            self.put_list(value)
        elif kind is dict:
            self.put_dict(value)
        elif kind is tuple:
            self.put_tuple(value)
        else:
            self.put_object(value, kind)
        self.depth -= 1
        self.open = here.outer
        return 0

    cdef int put_object(self, object value, object kind) except -1:
        if kind is UntypedStorage and is_in_memory(value):
            return self.put_storage(value)
        cdef object taker = self.takers.get(kind, self)
        if taker is self:
            taker = self.takers[kind] = taker_of(kind)
        return self.put_pickled(value) if taker is None else self.put_reduced(value, taker)

    cdef int put_int(self, object value) except -1:
        cdef int overflow = 0
        cdef int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow)
        if overflow:
            length = (value.bit_length() + 8) // 8
            return self.put_bytes(TAG_BIG_INT, value.to_bytes(length, "little", signed=True))
        self.put_tag(TAG_INT)
        return self.put_number(number)

    cdef int put_str(self, object value) except -1:
        cdef bytes text
        if not self.begin_text(TAG_STR, TAG_NUMBERED_STR, value):
            return 0
        if PyUnicode_IS_COMPACT_ASCII(value):
            return self.put_text(ascii_of(value), PyUnicode_GET_LENGTH(value))
        # Not by PyUnicode_AsUTF8: the dataset's own text would keep a copy of itself.
        text = encode_text(value, "utf-8", "surrogatepass")
        return self.put_text(PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))

    cdef int put_raw(self, object value) except -1:
        if self.is_record and PyBytes_GET_SIZE(value) >= LARGE_TEXT:
            return self.put_large_bytes(value)
        if not self.begin_text(TAG_BYTES, TAG_NUMBERED_BYTES, value):
            return 0
        return self.put_text(PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))

    cdef int put_large_bytes(self, bytes value) except -1:
        """Write bytes beside the stream, which would double them while it grows."""
        if not self.begin(TAG_LARGE_BYTES, value):
            return 0
        self.kept.append(value)
        self.put_number(PyBytes_GET_SIZE(value))
        return self.put_source(PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value), 1)

    cdef bint begin_text(self, int tag, int numbered_tag, object value) except -1:
        """Begin the node of a text, with a number only if it may be met again."""
        if Py_REFCNT(value) > OWN_REFERENCES:
            return self.begin(numbered_tag, value)
        self.put_tag(tag)
        return True

    cdef int put_list(self, list value) except -1:
        cdef object item
        if self.is_record:
            if are_all(value, float):
                return self.put_floats(TAG_FLOAT_LIST, value)
            if are_all(value, int) and are_short(value):
                return self.put_ints(TAG_INT_LIST, value)
        if not self.begin(TAG_LIST, value):
            return 0
        self.put_number(len(value))
        for item in value:
            self.put(item)
        return 0

    cdef int put_floats(self, int tag, object value) except -1:
        cdef object item
        if not self.begin(tag, value):
            return 0
        self.put_number(len(value))
        for item in value:
            self.put_double(PyFloat_AS_DOUBLE(item))
        return 0

    cdef int put_ints(self, int tag, object value) except -1:
        cdef object item
        if not self.begin(tag, value):
            return 0
        self.put_number(len(value))
        for item in value:
            self.put_numeral(item)
        return 0

    cdef int put_tuple(self, tuple value) except -1:
        cdef object item
        cdef int64_t number
        if self.is_record:
            if are_all(value, float):
                return self.put_floats(TAG_FLOAT_TUPLE, value)
            if are_all(value, int) and are_short(value):
                return self.put_ints(TAG_INT_TUPLE, value)
        if not self.begin(TAG_TUPLE, value):
            return 0
        number = self.leave_unfinished(value)
        self.put_number(len(value))
        for item in value:
            self.put(item)
        self.known(value)[0] = number
        return 0

    cdef int64_t leave_unfinished(self, object value) except -1:
        """Refuse references to an object that was just begun; returns its number, for later."""
        self.known(value)[0] = UNFINISHED
        return self.numbered - 1

    cdef int put_dict(self, dict value) except -1:
        cdef object key, item
        if self.names is not None:
            return self.put_keyed(value)
        if not self.begin(TAG_DICT, value):
            return 0
        self.put_number(len(value))
        for key, item in value.items():
            self.put(key)
            self.put(item)
        return 0

    cdef int put_keyed(self, dict value) except -1:
        """Write a dict whose keys stand once for all records, as far as they are names."""
        cdef object key, item, number
        cdef uint16_t name
        if not self.begin(TAG_KEYED, value):
            return 0
        self.put_number(len(value))
        for key, item in value.items():
            number = self.names.get(key) if type(key) is str else None
            if number is None:
                number = self.number_name(key)
            name = number
            memcpy(self.extend(2), &name, 2)
            if name == NO_NAME:
                self.put(key)
            self.put(item)
        return 0

    cdef object number_name(self, object key):
        cdef Py_ssize_t number = len(self.names)
        if type(key) is not str or number >= NAMES_MAX or len(key) > NAME_LENGTH_MAX:
            return NO_NAME
        self.names[key] = number
        return number

    cdef int put_tensor(self, object tensor) except -1:
        cdef DLTensor is_
        if not plain_tensor(tensor, &is_):
            return self.put_pickled(tensor)
        return self.put_plain_tensor(tensor, &is_)

    cdef int put_plain_tensor(self, object tensor, const DLTensor *is_) except -1:
        cdef uint64_t length = span_elements(is_.ndim, is_.shape, is_.strides)
        cdef char *start
        cdef DLTensor dense
        if not self.begin(TAG_TENSOR, tensor):
            return 0
        if self.is_record and length > DENSE * count_elements(is_):
            # A column of a table: its record would hold the table.
            tensor = tensor.contiguous()
            self.kept.append(tensor)
            plain_tensor(tensor, &dense)
            is_ = &dense
            length = count_elements(is_)
        start = tensor_start(is_)
        length *= is_.dtype.bits // 8
        if length > 0 and self.offset_of(start, length) < 0:
            if length >= LARGE_BYTES or <size_t>start < LOW_ADDRESS:
                start = self.start_in_storage(tensor, start, length)
        self.put_tag(is_.dtype.code)
        self.put_tag(is_.dtype.bits)
        self.put_tag(is_.ndim)
        self.put_source(start, length, is_.dtype.bits // 8)
        if is_.ndim > 0:
            memcpy(self.extend(8 * is_.ndim), is_.shape, 8 * is_.ndim)
            memcpy(self.extend(8 * is_.ndim), is_.strides, 8 * is_.ndim)
        return 0

    cdef char *start_in_storage(self, object tensor, char *start, uint64_t length) except NULL:
        """Returns the start of memory that is a tensor's: zeros if its storage was given up."""
        cdef object storage = tensor.untyped_storage()
        cdef uint64_t whole = storage.nbytes()
        cdef object zeros
        if whole == 0:
            zeros = torch.zeros(length, dtype=torch.uint8)
            self.kept.append(zeros)
            return <char *><size_t>zeros.data_ptr()
        if <size_t>start + length > <size_t>storage.data_ptr() + whole:
            raise RuntimeError(
                f"a tensor ends beyond its storage, which was resized to {whole} bytes"
            )
        return start

    cdef int put_array(self, cnp.ndarray array) except -1:
        cdef int axis
        if array.descr.hasobject:
            return self.put_pickled(array)
        if not self.begin(TAG_ARRAY, array):
            return 0
        if not cnp.PyArray_IS_C_CONTIGUOUS(array) and not cnp.PyArray_IS_F_CONTIGUOUS(array):
            array = numpy.ascontiguousarray(array)
            self.kept.append(array)
        if array.descr.byteorder == foreign_byteorder:
            # As pickled by torch's queues: the same values, in the machine's order.
            array = array.astype(array.dtype.newbyteorder("="))
            self.kept.append(array)
        self.put_tag(not cnp.PyArray_IS_C_CONTIGUOUS(array))
        self.put_tag(array.ndim)
        self.put_source(
            <char *>cnp.PyArray_DATA(array), cnp.PyArray_NBYTES(array), array.descr.alignment
        )
        for axis in range(array.ndim):
            self.put_fixed(array.shape[axis])
        return self.put_dtype(array.descr)

    cdef int put_dtype(self, cnp.dtype dtype) except -1:
        """Write a number type by its number, a simple one by its text, any other as a pickle."""
        cdef int number = dtype.num
        if is_number_type(number) and dtype is cnp.PyArray_DescrFromType(number):
            self.put_tag(TAG_INT)
            return self.put_number(number)
        if dtype.metadata is None:
            if is_number_type(number) and dtype.byteorder in (c"=", c"|"):
                self.put_tag(TAG_INT)
                return self.put_number(number)
            if is_described_by_text(dtype):
                return self.put_bytes(TAG_STR, dtype.str.encode())
        if not self.begin(TAG_DTYPE, dtype):
            return 0
        # By a pickler of its own: this may be written while the batch's pickler is at work.
        self.kept.append(dtype)
        return self.put_checked(pickle.dumps(dtype, 5))

    cdef int put_checked(self, bytes text) except -1:
        """Write bytes and their checksum."""
        cdef uint32_t checksum = zlib.crc32(text)
        self.put_text(PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
        memcpy(self.extend(4), &checksum, 4)
        return 0

    cdef int put_scalar(self, object value) except -1:
        cdef cnp.ndarray array = numpy.asarray(value)
        if array.descr.hasobject:
            return self.put_pickled(value)
        if not self.begin(TAG_SCALAR, value):
            return 0
        self.put_dtype(array.descr)
        return self.put_bytes(TAG_BYTES, array.tobytes())

    cdef int put_named(self, object value) except -1:
        cdef bytes name
        if self.known(value)[0] != ABSENT:
            return self.put_again(value, self.known(value)[0])
        name = name_of(value)
        if name is None:
            return self.put_pickled(value)
        self.kept.append(value)
        self.begin(TAG_NAMED, value)
        return self.put_checked(name)

    cdef int put_reduced(self, object value, object taker) except -1:
        """Write an object as the parts that pickle would build it from, natively."""
        if self.known(value)[0] != ABSENT:
            return self.put_again(value, self.known(value)[0])
        if not self.put_parts(
            value, value.__reduce_ex__(4) if taker is OWN_PARTS else taker(value)
        ):
            return self.put_pickled(value)
        return 0

    cdef bint put_parts(self, object value, object parts) except -1:
        """Write a new object's parts; returns False, and writes nothing, if they are none."""
        cdef list items
        cdef dict pairs
        cdef int64_t number
        if type(parts) is not tuple or not 2 <= len(parts) <= 5 or type(parts[1]) is not tuple:
            return False
        self.kept.append(parts)
        self.begin(TAG_REDUCED, value)
        number = self.leave_unfinished(value)
        self.put(None if parts[0] is new_object else parts[0])
        self.put(parts[1])
        self.known(value)[0] = number
        self.put(parts[2] if len(parts) > 2 else None)
        items = list(parts[3]) if len(parts) > 3 and parts[3] is not None else []
        pairs = dict(parts[4]) if len(parts) > 4 and parts[4] is not None else {}
        self.kept.append((items, pairs))
        self.put(items)
        self.put(pairs)
        return True

    cdef int put_pickled(self, object value) except -1:
        """Write what no node can say as a pickle whose leaves and buffers lie in the payload."""
        cdef int64_t *known = self.known(value)
        cdef bytes pickled
        cdef list buffers
        cdef object part
        cdef size_t leaves_at
        if known[0] != ABSENT and known[0] != INSIDE:
            return self.put_again(value, known[0])
        known[0] = number_of_pickled(self.numbered)
        self.put_tag(TAG_PICKLED)
        self.put_own_number()
        leaves_at = self.used
        self.put_fixed(0)
        if self.pickler is None:
            kind = pickling.ValuePickler if self.values_alone else pickling.Pickler
            self.pickler = kind(self.number_of, reducer_of)
        self.leaves = 0
        pickled, buffers = self.pickler.take(value)
        memcpy(self.stream + leaves_at, &self.leaves, 8)
        self.pickled_bytes += len(pickled)
        self.put_tag(TAG_PICKLE)
        self.put_number(len(buffers))
        self.put_number(zlib.crc32(pickled))
        self.put_part(pickled)
        for part in buffers:
            self.put_part(part)
        return 0

    @cython.always_allow_keywords(False)   # it is called for every object of a pickle
    def number_of(self, value):
        """
        Tell the pickler the number of an object that has a node of its own.

        Leaves that have none yet get one in front of the pickle; other objects are noted, so that
        the pickler is asked for them if the walk meets them later.
        """
        cdef object kind = type(value)
        cdef int64_t *known
        if kind in ATOMS or is_small_text(value, kind):
            return None
        known = self.known(value)
        if known[0] >= 0:
            self.note_reference(known[0])
            return known[0]
        if known[0] == UNFINISHED:
            raise _Unfinished()
        if known[0] != ABSENT:
            return None
        self.kept.append(value)
        if kind is Tensor or kind is ndarray or kind is UntypedStorage:
            return self.number_of_leaf(value, kind)
        known[0] = INSIDE
        return None

    cdef object number_of_leaf(self, object value, object kind):
        cdef DLTensor is_
        cdef int64_t number = self.numbered
        if kind is Tensor and plain_tensor(value, &is_):
            self.put_plain_tensor(value, &is_)
        elif kind is ndarray and not (<cnp.ndarray>value).descr.hasobject:
            self.put_array(value)
        elif kind is UntypedStorage and is_in_memory(value):
            return self.number_of_storage(value)
        else:
            self.known(value)[0] = INSIDE
            return None
        self.leaves += 1
        return number

    cdef int put_storage(self, object storage) except -1:
        cdef int64_t known = number_at(&self.numbers, <void *><size_t>storage._cdata)[0]
        if known != ABSENT:
            return self.put_again(storage, known)
        self.kept.append(storage)
        self.number_of_storage(storage)
        return 0

    cdef object number_of_storage(self, object storage):
        # Two Python objects may stand for one storage, so the address is torch's own.
        cdef int64_t *known = number_at(&self.numbers, <void *><size_t>storage._cdata)
        cdef uint64_t length
        if known[0] == ABSENT:
            known[0] = self.numbered
            length = storage.nbytes()
            self.put_tag(TAG_STORAGE)
            self.put_own_number()
            self.put_number(length)
            self.put_source(<char *><size_t>storage.data_ptr(), length, RECORD_UNIT_MAX)
            self.leaves += 1
            return self.numbered - 1
        return known[0]

    cdef int put_part(self, object part) except -1:
        cdef Py_buffer view
        PyObject_GetBuffer(part, &view, PyBUF_SIMPLE)
        try:
            self.kept.append(part)
            self.put_number(view.len)
            self.put_source(<char *>view.buf, view.len, RECORD_UNIT_MAX)
        finally:
            PyBuffer_Release(&view)
        return 0

    cdef uint64_t join_stretches(self, uint64_t payload_bytes) except? 0:
        """Find what of the payload can live apart; returns the length of the list, 0 for none."""
        cdef const Source *source
        cdef size_t i
        if payload_bytes <= self.memory.policy.shared_bytes:
            return 0
        if self.joined_bytes > 0:
            add_stretch(&self.stretches, 0, self.joined_bytes)
        for i in range(self.sources.count):
            source = &self.sources.items[i]
            add_stretch(&self.stretches, source.offset, source.length)
        settle_stretches(&self.stretches, self.memory.policy.shared_bytes)
        if are_whole(&self.stretches, payload_bytes):
            return 0
        return stretches_length(&self.stretches)

    cdef int finish(self, slot_answer *draft) except -1:
        """Copy what is not in the slot yet, write the layout after it and describe both."""
        cdef uint64_t payload = place_sources(&self.sources, self.memory.cursor)
        cdef uint64_t layout = round_up(payload, CACHE_LINE)
        cdef uint64_t head = self.join_stretches(payload)
        cdef char *slot
        self.memory.check_canary()
        self.memory.need(layout + head + self.used)
        slot = self.memory.start
        if head > 0:
            write_stretches(&self.stretches, slot + layout)
        with nogil:
            copy_sources(&self.sources, slot)
            patch_offsets(&self.sources, self.stream)
            STEP("write: payload")
            STEP_COPY("write: half a layout", slot + layout + head, self.stream, self.used)
            STEP("write: layout")
        draft.payload_bytes = payload
        draft.layout_offset = layout
        draft.layout_bytes = head + self.used
        draft.pickled_bytes = self.pickled_bytes
        draft.flags = ANSWER_CYCLIC if self.is_cyclic else 0
        self.memory.cursor = layout + head + self.used
        return 0

    cdef uint64_t place_record(self, uint64_t position) except? 0:
        """Give the leaves their offsets after the stream; returns the record's length."""
        cdef uint64_t end = place_sources(&self.sources, position + self.used)
        cdef size_t i
        for i in range(self.sources.count):
            self.sources.items[i].offset -= position
        patch_offsets(&self.sources, self.stream)
        return end - position

    cdef void write_record(self, char *to, uint64_t length) noexcept:
        """Write a record that was placed, with zeros between its leaves."""
        memcpy(to, self.stream, self.used)
        if length > self.used:
            memset(to + self.used, 0, length - self.used)
        with nogil:
            copy_sources(&self.sources, to)


cdef Encoder walked(SlotMemory memory, batch, bint values_alone=False):
    """Walk a batch; the caller takes the encoder's pickler away when it is done."""
    cdef Encoder encoder = Encoder.__new__(Encoder, memory, values_alone)
    try:
        encoder.put_whole(batch)
    except BaseException:
        encoder.pickler = None   # it refers to the encoder
        raise
    return encoder


cdef int encode(SlotMemory memory, batch) except -1:
    """Write a batch into the slot in hand, and describe its place in the draft of the answer."""
    cdef Encoder encoder = walked(memory, batch)
    try:
        return encoder.finish(&memory.draft)
    finally:
        encoder.pickler = None   # it refers to the encoder

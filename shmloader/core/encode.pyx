# A batch into a slot, or one record into a buffer (records.pyx).
#
# The layout is one stream of nodes, each a tag and what the tag says, in the order of a walk over
# the batch. A leaf's node holds the offset of its bytes in the payload (leaf_writer.pyx).
#
# Objects that can be met twice are numbered, and stand in the stream once. A text to which nobody
# but its container refers cannot be met twice, so most texts need no number.
#
# The walk ends, and the whole batch becomes one pickle (pickling.py), if there is something in it
# that no node can say, if something refers to an object that the trainer cannot have yet, because
# it is built from what is being written, or if many objects without leaves would be taken apart by
# their own methods. So what is one object in a batch is one in the trainer, and Python objects cost
# what they cost in any pickle. Leaves that the pickler meets get nodes in front of the pickle; what
# it calls for them never pickles.

import contextlib
import copyreg
import gc
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

cdef object generic = numpy.generic
cdef object new_object = copyreg.__newobj__
cdef object UntypedStorage = torch.UntypedStorage
cdef char foreign_byteorder = c">" if sys.byteorder == "little" else c"<"
cdef object reconstruct = numpy.ndarray.__reduce__(numpy.empty(0))[0]

cdef enum:
    LARGE_TEXT = 4096   # of a record's bytes: lies beside the stream
    MANY = 16           # objects that cost more one by one than in a pickle
    OWN_REFERENCES = 2  # to an item: its container's, and that of the walk over this
    # Of a list of records. Each process that reads it has its names, so there cannot be too many.
    NAMES_MAX = 4096
    NAME_LENGTH_MAX = 256
    NO_NAME = 0xFFFF    # instead of a key's number: the key itself follows
    TENSOR_BYTES = 11   # of a tensor's node, before shape and strides


DEPTH_MAX = DEPTH
cdef object OWN_PARTS = object()
cdef object BY_NAME = object()
cdef object SCALAR = object()


class _OnePickle(Exception):
    """A batch has something in it for which all of it is pickled."""


cdef bint is_builtin_function(object value):
    # A method such as [].append is of the same type, but its pickle holds what it is bound to.
    if type(value) is not BuiltinFunctionType:
        return False
    return isinstance(value.__self__, (ModuleType, NoneType))


cdef bint becomes_native(cnp.ndarray array):
    """Returns True if an array arrives in the machine's byte order, as from torch's queues."""
    if array.descr.byteorder != foreign_byteorder:
        return False
    # Since Python 3.14 a pickle keeps the order of an array with a buffer: dates have none.
    return pickle.DEFAULT_PROTOCOL < 5 or array.__reduce_ex__(5)[0] is reconstruct


cdef object taker_of(object kind):
    """
    Returns what takes instances of a type apart, whose parts travel instead of a pickle.

    OWN_PARTS: they do so themselves. None: their batch is pickled. BY_NAME, SCALAR: they have none.
    """
    # Not by isinstance(), which asks a user's object for its __class__.
    if issubclass(kind, type):
        return BY_NAME
    if issubclass(kind, generic) and kind.__module__ == "numpy":
        return SCALAR
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


cdef object filled(object parts, object make):
    """Returns an object's parts, of which make has made those that it is filled with, if any."""
    cdef Py_ssize_t count = len(parts) if type(parts) is tuple else 0
    if count == 4 and parts[3] is not None:
        return (*parts[:3], make(parts[3]))
    if count == 5 and not (parts[3] is None and parts[4] is None):
        return (*parts[:3], *[None if each is None else make(each) for each in parts[3:]])
    return parts


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


@cython.final
@cython.internal
cdef class Encoder(LeafWriter):
    cdef Numbers numbers
    cdef int64_t numbered      # objects so far
    cdef int64_t leaves        # of the pickle
    cdef int64_t reduced       # objects that were taken apart by their own methods
    cdef dict inner            # id of a pickle's tensor -> where its tag stands
    cdef int depth
    cdef dict takers           # type -> taker_of() it
    cdef dict taken            # id of an object that was asked for its parts -> these
    cdef dict names            # of a list of records: key -> its number; or None
    cdef bint values_alone     # readers may come when this process is gone

    def __cinit__(self, SlotMemory memory, bint values_alone=False, dict names=None):
        self.memory = memory
        self.is_record = memory is None
        self.values_alone = values_alone
        self.names = names
        # So that a small batch need not note its leaves.
        if memory is not None and memory.cursor <= POLICY_SHARED_BYTES:
            self.joined_bytes = memory.cursor
        self.kept, self.sparse = [], []
        self.takers, self.taken = {}, {}

    def __dealloc__(self):
        forget_numbers(&self.numbers)

    cdef int begin_again(self) except -1:
        """Forget all that was written."""
        self.forget_leaves()
        self.used = 0
        self.numbered = self.reduced = self.depth = 0
        forget_numbers(&self.numbers)
        return 0

    cdef int64_t *known(self, object value) except NULL:
        return number_at(&self.numbers, <void *>value)

    cdef int put_own_number(self) except -1:
        """Number the object that begins here."""
        if not self.is_record:
            self.put_ordinal(self.numbered)
        self.numbered += 1
        return 0

    cdef bint begin(self, int tag, object value) except -1:
        """
        Begin the node of an object that can be met twice.

        Returns False if it was met before: then a reference to it was written instead.
        """
        cdef int64_t *known = self.known(value)
        if known[0] != ABSENT:
            self.put_again(known[0])
            return False
        known[0] = self.numbered
        self.put_tag(tag)
        self.put_own_number()
        return True

    cdef int put_again(self, int64_t known) except -1:
        """Write a reference to an object that was met before."""
        if known == UNFINISHED:
            raise _OnePickle()
        self.put_tag(TAG_AGAIN)
        return self.put_ordinal(known)

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
        elif kind is FunctionType or is_builtin_function(value):
            self.put_named(value)
        else:
            self.put_other(value, kind)
        return 0

    cdef int put_other(self, object value, object kind) except -1:
        cdef object taker = self.taker_for(kind)
        if taker is BY_NAME:
            return self.put_named(value)
        if taker is SCALAR:
            return self.put_scalar(value)
        return self.put_container(value, kind)

    cdef object taker_for(self, object kind):
        cdef object taker = self.takers.get(kind, self)
        if taker is self:
            taker = self.takers[kind] = taker_of(kind)
        return taker

    cdef int put_whole(self, object value) except -1:
        """Write a batch or a record: its nodes, or one pickle."""
        try:
            return self.put(value)
        except _OnePickle:
            self.begin_again()
        return self.put_pickled(value)

    cdef int put_container(self, object value, object kind) except -1:
        if self.depth == DEPTH:
            raise RecursionError(f"nested deeper than the {DEPTH} levels that a batch may have")
        self.depth += 1
        if kind is list:
            self.put_list(value)
        elif kind is dict:
            self.put_dict(value)
        elif kind is tuple:
            self.put_tuple(value)
        else:
            self.put_object(value, kind)
        self.depth -= 1
        return 0

    cdef int put_object(self, object value, object kind) except -1:
        cdef object taker = self.taker_for(kind)
        if taker is None:
            raise _OnePickle()
        if taker is OWN_PARTS:
            self.note_reduced()
        return self.put_reduced(value, taker)

    cdef int note_reduced(self) except -1:
        """Count an object that costs more on its own than in a pickle, if no leaf is in it."""
        self.reduced += 1
        # Not those around each other: a pickle cannot go down as deep as this walk.
        if self.reduced > MANY + self.depth + <int64_t>self.sources.count:
            raise _OnePickle()
        return 0

    cdef int put_int(self, object value) except -1:
        cdef int overflow = 0
        cdef int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow)
        if overflow:
            self.note_reduced()
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
        if self.is_record and self.put_numbers(TAG_FLOAT_LIST, TAG_INT_LIST, value):
            return 0
        if not self.begin(TAG_LIST, value):
            return 0
        self.put_number(len(value))
        for item in value:
            self.put(item)
        return 0

    cdef bint put_numbers(self, int float_tag, int int_tag, object value) except -1:
        """Write a list or tuple without a tag for each item. Returns False if it has others."""
        cdef object item
        cdef bint has_floats = are_floats(value)
        if not has_floats and not are_short_ints(value):
            return False
        if not self.begin(float_tag if has_floats else int_tag, value):
            return True
        self.put_number(len(value))
        for item in value:
            if has_floats:
                self.put_double(PyFloat_AS_DOUBLE(item))
            else:
                self.put_numeral(item)
        return True

    cdef int put_tuple(self, tuple value) except -1:
        cdef object item
        cdef int64_t number
        if self.is_record and self.put_numbers(TAG_FLOAT_TUPLE, TAG_INT_TUPLE, value):
            return 0
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
        if not self.begin(TAG_DICT if self.names is None else TAG_KEYED, value):
            return 0
        self.put_number(len(value))
        for key, item in value.items():
            self.put_key(key)
            self.put(item)
        return 0

    cdef int put_pairs(self, list pairs) except -1:
        """Write the pairs that an object is given as a dict; equal keys are left to the pickle."""
        cdef dict items = {}
        with contextlib.suppress(TypeError):   # of a key that no dict has
            items = dict(pairs)
        if len(items) != len(pairs):
            raise _OnePickle()
        self.kept.append(items)
        return self.put_dict(items)

    cdef int put_key(self, object key) except -1:
        """Write a key; one that is a name stands once for all records."""
        cdef object number
        cdef uint16_t name
        if self.names is None:
            return self.put(key)
        number = self.names.get(key) if type(key) is str else None
        if number is None:
            number = self.number_name(key)
        name = number
        memcpy(self.extend(2), &name, 2)
        return self.put(key) if name == NO_NAME else 0

    cdef object number_name(self, object key):
        cdef Py_ssize_t number = len(self.names)
        if type(key) is not str or number >= NAMES_MAX or len(key) > NAME_LENGTH_MAX:
            return NO_NAME
        self.names[key] = number
        return number

    cdef int put_tensor(self, object tensor) except -1:
        cdef DLTensor is_
        cdef int64_t known = self.known(tensor)[0]
        if known != ABSENT:
            return self.put_again(known)
        if not plain_tensor(tensor, &is_):
            raise _OnePickle()
        return self.put_plain_tensor(tensor, &is_)

    cdef int put_plain_tensor(self, object tensor, const DLTensor *is_) except -1:
        cdef uint64_t span = span_elements(is_.ndim, is_.shape, is_.strides)
        cdef uint64_t item_bytes = is_.dtype.bits // 8
        cdef size_t dims_bytes = 8 * is_.ndim
        cdef Source source
        cdef bint is_made
        cdef char *to
        if not self.begin(TAG_TENSOR, tensor):
            return 0
        source = Source(tensor_start(is_), span * item_bytes, storage_of(tensor), 0, 0, 0,
                        CACHE_LINE)
        is_made = self.is_made(&source)
        if source.length > 0 and not is_made:
            self.look_at(tensor, is_, &source)
        to = self.extend(TENSOR_BYTES + 2 * dims_bytes)
        to[0], to[1], to[2] = <char>is_.dtype.code, <char>is_.dtype.bits, <char>is_.ndim
        memset(to + 3, 0, 8)
        source.patch = to + 3 - self.stream
        if dims_bytes > 0:   # with none there may be no lists of them
            memcpy(to + TENSOR_BYTES, is_.shape, dims_bytes)
            memcpy(to + TENSOR_BYTES + dims_bytes, is_.strides, dims_bytes)
        return self.note(&source, is_made, item_bytes)

    cdef int put_array(self, cnp.ndarray array) except -1:
        cdef int axis
        if array.descr.hasobject:
            raise _OnePickle()
        if not self.begin(TAG_ARRAY, array):
            return 0
        if becomes_native(array):
            array = array.astype(array.dtype.newbyteorder("="))
            self.kept.append(array)
        if not cnp.PyArray_IS_C_CONTIGUOUS(array) and not cnp.PyArray_IS_F_CONTIGUOUS(array):
            array = numpy.ascontiguousarray(array)
            self.kept.append(array)
        self.put_tag(not cnp.PyArray_IS_C_CONTIGUOUS(array))
        self.put_tag(array.ndim)
        self.put_source(
            <char *>cnp.PyArray_DATA(array), cnp.PyArray_NBYTES(array), array.descr.itemsize
        )
        for axis in range(array.ndim):
            self.put_fixed(array.shape[axis])
        return self.put_dtype(array.descr)

    cdef int put_dtype(self, cnp.dtype dtype) except -1:
        """Write a number type by its number, a simple one by its text, any other as a pickle."""
        if is_described(dtype):
            if is_number_type(dtype.num):
                self.put_tag(TAG_INT)
                return self.put_number(dtype.num)
            return self.put_bytes(TAG_STR, dtype.str.encode())
        if not self.begin(TAG_DTYPE, dtype):
            return 0
        self.kept.append(dtype)
        return self.put_checked(pickle_of_type(dtype))

    cdef int put_scalar(self, object value) except -1:
        cdef cnp.dtype dtype
        if not self.begin(TAG_SCALAR, value):
            return 0
        dtype = value.dtype
        if not is_number_type(dtype.num):
            return self.put_array_scalar(numpy.asarray(value))
        self.put_dtype(dtype)
        self.put_tag(TAG_BYTES)
        self.put_number(dtype.itemsize)
        cnp.PyArray_ScalarAsCtype(value, self.extend(dtype.itemsize))
        return 0

    cdef int put_array_scalar(self, cnp.ndarray array) except -1:
        """Write a scalar that is no number as an array, whose type may be another."""
        if array.descr.hasobject:
            raise _OnePickle()
        self.put_dtype(array.descr)
        return self.put_bytes(TAG_BYTES, array.tobytes())

    cdef int put_named(self, object value) except -1:
        cdef bytes name
        if not self.begin(TAG_NAMED, value):
            return 0
        name = name_of(value)
        if name is None:
            raise _OnePickle()
        self.kept.append(value)
        return self.put_checked(name)

    cdef int put_reduced(self, object value, object taker) except -1:
        """Write an object as the parts that pickle would build it from, natively."""
        if self.known(value)[0] != ABSENT:
            return self.put_again(self.known(value)[0])
        return self.put_parts(value, self.take(value) if taker is OWN_PARTS else taker(value))

    cdef object take(self, object value):
        """Ask an object for its parts, for this walk and for a pickle after it."""
        # Once, because its methods may have changed it, and what they return can be read once.
        cdef object parts = filled(value.__reduce_ex__(4), list)
        self.taken[id(value)] = parts
        return parts

    cdef int put_parts(self, object value, object parts) except -1:
        """Write a new object's parts."""
        cdef list items, pairs
        cdef int64_t number
        if type(parts) is not tuple or not 2 <= len(parts) <= 5 or type(parts[1]) is not tuple:
            raise _OnePickle()
        self.kept.append(parts)
        self.begin(TAG_REDUCED, value)
        number = self.leave_unfinished(value)
        self.put(None if parts[0] is new_object else parts[0])
        self.put(parts[1])
        self.known(value)[0] = number
        self.put(parts[2] if len(parts) > 2 else None)
        items = (parts[3] if len(parts) > 3 else None) or []
        pairs = (parts[4] if len(parts) > 4 else None) or []
        self.kept.append(items)
        self.put(items)
        return self.put_pairs(pairs)

    cdef int put_pickled(self, object value) except -1:
        """Write a whole batch as a pickle whose leaves and buffers lie in the payload."""
        cdef bytes pickled
        cdef list buffers
        cdef object part, kind, taker
        cdef size_t leaves_at
        cdef object reducers = pickling.Reducers(self.values_alone)
        reducers[Tensor] = self.reduce_tensor
        reducers[ndarray] = self.reduce_array
        reducers[UntypedStorage] = self.reduce_storage
        for kind, taker in self.takers.items():
            if taker is OWN_PARTS:
                reducers[kind] = self.reduce_taken
        self.put_tag(TAG_PICKLED)
        self.put_own_number()
        leaves_at = self.used
        self.put_fixed(0)
        self.leaves, self.inner = 0, {}
        pickled, buffers = pickling.dumps(value, reducers)
        memcpy(self.stream + leaves_at, &self.leaves, 8)
        if self.leaves or buffers:
            self.look_around(value)
        self.pickled_bytes += len(pickled)
        self.put_tag(TAG_PICKLE)
        self.put_number(len(buffers))
        self.put_number(zlib.crc32(pickled))
        self.put_part(pickled)
        for part in buffers:
            self.put_part(part)
        return 0

    # What follows is called by the pickler. It writes leaves alone, and never pickles.

    @cython.always_allow_keywords(False)
    def reduce_tensor(self, tensor):
        """Write a plain tensor as a leaf of the pickle; others are reduced to their storages."""
        cdef DLTensor is_
        cdef int64_t number = self.numbered
        cdef size_t place
        if not plain_tensor(tensor, &is_):
            return pickling.reduce_tensor(tensor, self.values_alone)
        place = self.used
        self.put_plain_tensor(tensor, &is_)
        self.stream[place] = <char>TAG_INNER_TENSOR
        self.inner[id(tensor)] = place
        return self.leaf(tensor, number)

    @cython.always_allow_keywords(False)
    def reduce_array(self, cnp.ndarray array):
        """Write an array as a leaf of the pickle, of bytes if its type is to be pickled."""
        cdef int64_t number = self.numbered
        cdef cnp.dtype dtype = array.descr
        if dtype.hasobject or dtype.itemsize == 0:
            return array.__reduce_ex__(5)
        if not is_described(dtype) and not becomes_native(array):
            return pickling.typed, (array.view(f"V{dtype.itemsize}"), dtype)
        self.put_array(array)
        return self.leaf(array, number)

    @cython.always_allow_keywords(False)
    def reduce_storage(self, storage):
        """Write a storage of the CPU as a leaf of the pickle."""
        if not is_in_memory(storage):
            return pickling.reduce_storage(storage, self.values_alone)
        self.kept.append(storage)
        return pickling.leaf, (self.number_of_storage(storage),)

    @cython.always_allow_keywords(False)
    def reduce_taken(self, value):
        """Returns the parts of an object that the walk before may have asked for them."""
        cdef object parts = self.taken.get(id(value))
        return value.__reduce_ex__(5) if parts is None else filled(parts, iter)

    cdef object leaf(self, object value, int64_t number):
        """Returns what stands in the pickle for a leaf that was just written."""
        self.kept.append(value)   # the pickler may have the only reference
        self.leaves += 1
        return pickling.leaf, (number,)

    cdef int look_around(self, object batch) except -1:
        """
        Find the tensors of a pickle that stand in containers.

        No code of the user's runs: containers are looked into as the garbage collector does.
        """
        cdef Numbers seen
        memset(&seen, 0, sizeof(seen))
        try:
            self.look_at_one(&seen, batch)
        finally:
            forget_numbers(&seen)
        return 0

    cdef int look_at_one(self, Numbers *seen, object value) except -1:
        cdef object kind = type(value)
        if kind is Tensor:
            self.leave_pickle(value)
        elif self.is_container(kind):
            self.look_into(seen, value, kind)
        return 0

    cdef int look_into(self, Numbers *seen, object container, object kind) except -1:
        cdef int64_t *state = number_at(seen, <void *>container)
        cdef object key, item
        cdef bint plain
        if state[0] != ABSENT:
            return 0
        state[0] = 0
        if kind is dict:
            for key, item in (<dict>container).items():
                self.look_at_one(seen, key)
                self.look_at_one(seen, item)
        else:
            plain = kind is list or kind is tuple
            for item in container if plain else gc.get_referents(container):
                self.look_at_one(seen, item)
        return 0

    cdef int leave_pickle(self, object tensor) except -1:
        """Let a tensor of the pickle be one of the batch's own."""
        cdef object place = self.inner.pop(id(tensor), None)
        if place is not None:
            self.stream[<size_t>place] = <char>TAG_TENSOR
        return 0

    cdef bint is_container(self, object kind) except -1:
        if kind is str or kind is int or kind is float:
            return False
        if kind is list or kind is dict or kind is tuple:
            return True
        return self.taker_for(kind) is OWN_PARTS

    cdef object number_of_storage(self, object storage):
        # Two Python objects may stand for one storage, so the address is torch's own.
        cdef int64_t *known = number_at(&self.numbers, <void *><size_t>storage._cdata)
        cdef Source source
        if known[0] == ABSENT:
            known[0] = self.numbered
            source = Source(<char *><size_t>storage.data_ptr(), storage.nbytes(), storage._cdata,
                            0, 0, 0, CACHE_LINE)
            self.put_tag(TAG_STORAGE)
            self.put_own_number()
            self.put_number(source.length)
            self.put_owned(&source, RECORD_UNIT_MAX)
            self.leaves += 1
            return self.numbered - 1
        return known[0]

cdef Encoder walked(SlotMemory memory, batch, bint values_alone=False):
    """Walk a batch."""
    cdef Encoder encoder = Encoder.__new__(Encoder, memory, values_alone)
    encoder.put_whole(batch)
    return encoder

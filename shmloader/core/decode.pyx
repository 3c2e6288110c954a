# A slot, or a block that it was spilled to, into a batch.
#
# The layout is copied out before it is read, and every length in it is checked against what is left
# of it, every leaf against the payload: a worker that writes nonsense gets WorkerBroken raised in
# the trainer, whatever it wrote. Pickles are checked against their sum before they are loaded.

import pickle
import zlib

import numpy

cimport cython
cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.long cimport PyLong_FromLongLong
from libc.stdint cimport int64_t, uint64_t, uint8_t
from libc.string cimport memcpy

from shmloader.core.capi cimport Py_EnterRecursiveCall, Py_LeaveRecursiveCall
from shmloader.core.csrc cimport DLDataType, lease

from shmloader.errors import WorkerBroken

cdef dict names_read = {}   # the pickle of a class, function or dtype -> itself
cdef Py_ssize_t NAMES_KEPT = 4096
cdef object unfinished = object()   # holds the number of an object that is still being read


cdef object read_name(bytes name):
    cdef object value = names_read.get(name)
    cdef Py_ssize_t length = max(len(name) - 4, 0)
    cdef bytes pickled = name[:length]
    if value is None:
        # No fill of memory passes for a pickle: the sum of nothing is 0, of 4 bytes 255 itself.
        if pickled[:1] != b"\x80" or zlib.crc32(pickled).to_bytes(4, "little") != name[length:]:
            raise WorkerBroken("a batch's layout holds a name that does not match its checksum")
        value = pickle.loads(pickled)
        if len(names_read) >= NAMES_KEPT:
            names_read.clear()
        names_read[name] = value
    return value


@cython.final
@cython.internal
cdef class Decoder:
    cdef const char *layout
    cdef size_t position
    cdef size_t end
    cdef char *payload
    cdef uint64_t payload_bytes
    cdef lease *owner
    cdef Alias alias
    cdef list memo
    cdef object loads

    cdef int broken(self, str what) except -1:
        raise WorkerBroken(f"a batch's layout cannot be read at byte {self.position}: {what}")

    cdef const char *take(self, uint64_t count) except NULL:
        if count > self.end - self.position:
            self.broken(f"{count} bytes are missing")
        self.position += count
        return self.layout + self.position - count

    cdef int take_tag(self) except -1:
        return <uint8_t>self.take(1)[0]

    cdef int64_t take_number(self) except? -1:
        cdef int64_t value
        memcpy(&value, self.take(8), 8)
        return value

    cdef Py_ssize_t take_count(self) except -1:
        """Read how many nodes follow; each is at least one byte long."""
        cdef int64_t count = self.take_number()
        if count < 0 or <uint64_t>count > self.end - self.position:
            self.broken(f"a container of {count} items")
        return count

    cdef bytes take_bytes(self):
        cdef Py_ssize_t count = self.take_count()
        return PyBytes_FromStringAndSize(self.take(count), count)

    cdef char *take_leaf(self, uint64_t length) except NULL:
        """Read an offset and check that length bytes from there lie in the payload."""
        cdef uint64_t offset = <uint64_t>self.take_number()
        if offset > self.payload_bytes or length > self.payload_bytes - offset:
            self.broken(f"a leaf at {offset} of {length} bytes in a payload of "
                        f"{self.payload_bytes}")
        return self.payload + offset

    cdef object get(self):
        cdef int tag = self.take_tag()
        cdef double real
        if tag == TAG_TENSOR:
            return self.get_tensor()
        if tag == TAG_ARRAY:
            return self.get_array()
        if tag == TAG_INT:
            return PyLong_FromLongLong(self.take_number())
        if tag == TAG_NONE:
            return None
        if tag == TAG_STR:
            return self.get_str()
        if tag == TAG_TRUE:
            return True
        if tag == TAG_FALSE:
            return False
        if tag == TAG_FLOAT:
            memcpy(&real, self.take(8), 8)
            return real
        if tag == TAG_BYTES:
            return self.take_bytes()
        Py_EnterRecursiveCall(b" while a batch is read")
        try:
            return self.get_container(tag)
        finally:
            Py_LeaveRecursiveCall()

    cdef object get_container(self, int tag):
        cdef double parts[2]
        cdef int64_t number
        if tag == TAG_LIST:
            return self.get_list()
        if tag == TAG_DICT:
            return self.get_dict()
        if tag == TAG_TUPLE:
            return self.get_tuple()
        if tag == TAG_REDUCED:
            return self.get_reduced()
        if tag == TAG_PICKLED:
            return self.get_pickled()
        if tag == TAG_NAMED:
            return read_name(self.take_bytes())
        if tag == TAG_SCALAR:
            return self.get_scalar()
        if tag == TAG_BIG_INT:
            return int.from_bytes(self.take_bytes(), "little", signed=True)
        if tag == TAG_COMPLEX:
            memcpy(parts, self.take(16), 16)
            return complex(parts[0], parts[1])
        if tag == TAG_AGAIN:
            number = self.take_number()
            if 0 <= number < len(self.memo) and self.memo[number] is not unfinished:
                return self.memo[number]
        self.broken(f"tag {tag}")

    cdef str get_str(self):
        try:
            return self.take_bytes().decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            self.broken("a text that is not UTF-8")

    cdef list get_list(self):
        cdef Py_ssize_t count = self.take_count(), _
        cdef list items = []
        self.memo.append(items)
        for _ in range(count):
            items.append(self.get())
        return items

    cdef tuple get_tuple(self):
        cdef Py_ssize_t count = self.take_count(), _
        cdef list items = []
        for _ in range(count):
            items.append(self.get())
        return tuple(items)

    cdef dict get_dict(self):
        cdef Py_ssize_t count = self.take_count(), _
        cdef dict items = {}
        cdef object key, item
        self.memo.append(items)
        for _ in range(count):
            key = self.get()
            item = self.get()
            try:
                items[key] = item
            except TypeError:
                self.broken(f"a key of type {type(key).__name__}")
        return items

    cdef int take_dims(self, int ndim, int64_t *dims) except -1:
        cdef int i
        if ndim > 0:
            memcpy(dims, self.take(8 * ndim), 8 * ndim)
        for i in range(ndim):
            if dims[i] < 0:
                self.broken(f"a dimension or stride of {dims[i]}")
        return 0

    cdef object get_tensor(self):
        cdef DLDataType dtype
        cdef int64_t shape[MAX_DIMS]
        cdef int64_t strides[MAX_DIMS]
        cdef uint64_t bytes_
        cdef size_t offset_at
        cdef size_t after
        cdef char *start
        cdef object tensor
        dtype.code = self.take_tag()
        dtype.bits = self.take_tag()
        dtype.lanes = 1
        cdef int ndim = self.take_tag()
        if ndim > MAX_DIMS or not is_known_type(dtype):
            self.broken(f"a tensor of {ndim} dimensions and type {dtype.code}, {dtype.bits}")
        offset_at = self.position
        self.take(8)
        self.take_dims(ndim, shape)
        self.take_dims(ndim, strides)
        bytes_ = self.tensor_bytes(ndim, shape, strides, dtype.bits // 8)
        after, self.position = self.position, offset_at
        start = self.take_leaf(bytes_)
        self.position = after
        tensor = tensor_over(self.owner, start, dtype, ndim, shape, strides)
        self.memo.append(tensor)
        return tensor

    cdef uint64_t tensor_bytes(self, int ndim, const int64_t *shape, const int64_t *strides,
                               uint64_t item_bytes) except? 0:
        """The bytes from a tensor's first element to its last, refusing sizes that overflow."""
        cdef uint64_t last = 0
        cdef uint64_t limit = self.payload_bytes
        cdef uint64_t elements = 1
        cdef bint empty = False
        cdef int i
        for i in range(ndim):
            # As torch counts: axis by axis, so that a later 0 does not excuse an overflow.
            if elements > 0 and <uint64_t>shape[i] > MAX_ELEMENTS // elements:
                self.broken(f"a tensor of more than {MAX_ELEMENTS} elements")
            elements *= <uint64_t>shape[i]
            if shape[i] == 0:
                empty = True
            elif shape[i] > 1 and strides[i] > 0:
                if <uint64_t>strides[i] > limit or <uint64_t>(shape[i] - 1) > limit // strides[i]:
                    if not self.is_empty(ndim, shape):
                        self.broken(f"a dimension of {shape[i]} with stride {strides[i]}")
                    continue
                last += <uint64_t>(shape[i] - 1) * <uint64_t>strides[i]
        return 0 if empty else (last + 1) * item_bytes

    cdef bint is_empty(self, int ndim, const int64_t *shape):
        cdef int i
        for i in range(ndim):
            if shape[i] == 0:
                return True
        return False

    cdef cnp.dtype get_dtype(self):
        # Not get(): a type is no container, so types cannot nest.
        cdef int tag = self.take_tag()
        cdef object value = None
        if tag == TAG_INT:
            value = self.take_number()
            if 0 <= value < cnp.NPY_OBJECT:
                return cnp.PyArray_DescrFromType(value)
        elif tag == TAG_NAMED:
            value = read_name(self.take_bytes())
            if isinstance(value, numpy.dtype) and not value.hasobject:
                return value
        self.broken(f"an array of type {value!r}, tag {tag}")

    cdef object get_array(self):
        cdef cnp.npy_intp shape[MAX_DIMS]
        cdef Py_ssize_t number = len(self.memo)
        cdef cnp.dtype dtype
        cdef uint64_t length
        cdef char *start
        cdef size_t offset_at
        cdef size_t after
        cdef int i, fortran, ndim
        cdef object array
        self.memo.append(unfinished)
        dtype = self.get_dtype()
        fortran = self.take_tag()
        ndim = self.take_tag()
        if ndim > MAX_DIMS:
            self.broken(f"an array of {ndim} dimensions")
        offset_at = self.position
        self.take(8)
        self.take_dims(ndim, <int64_t *>shape)
        length = dtype.itemsize
        for i in range(ndim):
            if shape[i] == 0:
                length = 0
            elif length > self.payload_bytes // shape[i]:
                self.broken(f"an array dimension of {shape[i]}")
            length *= <uint64_t>shape[i]
        after, self.position = self.position, offset_at
        start = self.take_leaf(length)
        self.position = after
        if self.alias is None:
            self.alias = take_alias(self.owner, self.payload, self.payload_bytes)
        try:
            array = array_over(self.alias, start, dtype, ndim, shape, fortran)
        except ValueError:
            self.broken("an array that numpy cannot make")
        self.memo[number] = array
        return array

    cdef object get_scalar(self):
        cdef cnp.dtype dtype = self.get_dtype()
        cdef int tag = self.take_tag()
        cdef bytes raw = self.take_bytes()
        if tag != TAG_BYTES or len(raw) != dtype.itemsize:
            self.broken(f"a scalar of type {dtype}")
        if dtype.itemsize == 0:
            return numpy.zeros((), dtype)[()]
        try:
            return numpy.frombuffer(raw, dtype)[0]
        except Exception:   # such as characters that Unicode does not have
            self.broken(f"the value of a scalar of type {dtype}")

    cdef object get_reduced(self):
        cdef object build = self.get()
        cdef object args = self.get()
        cdef object value, state, items, pairs
        if not callable(build) or type(args) is not tuple:
            # Not their repr: that of nonsense may be longer than any memory.
            self.broken(f"an object built by a {type(build).__name__}")
        value = build(*args)
        self.memo.append(value)
        state = self.get()
        items = self.get()
        pairs = self.get()
        if type(items) is not list or type(pairs) is not dict:
            self.broken(f"an object of {type(items).__name__} and {type(pairs).__name__}")
        # The state comes last, as in pickle: a container's own methods may have changed it.
        if items:
            value.extend(items) if hasattr(value, "extend") else [value.append(i) for i in items]
        for key, item in pairs.items():
            value[key] = item
        if state is not None:
            set_state(value, state)
        return value

    cdef object get_pickled(self):
        cdef Py_ssize_t number = len(self.memo)
        cdef Py_ssize_t count = self.take_count(), _
        cdef int64_t checksum = self.take_number()
        cdef list parts = []
        cdef bytes pickled
        cdef object value
        self.memo.append(unfinished)
        for _ in range(count + 1):
            parts.append(self.take_part())
        # Copied out before it is summed: its worker may still write to it.
        pickled = bytes(parts[0])
        if not pickled or zlib.crc32(pickled) != checksum:
            self.broken("a pickle that does not match its checksum")
        value = self.loads(pickled, parts[1:])
        self.memo[number] = value
        return value

    cdef Alias take_part(self):
        cdef uint64_t length = <uint64_t>self.take_number()
        return take_alias(self.owner, self.take_leaf(length), length)


cdef int set_state(object value, object state) except -1:
    """Give a rebuilt object its state, as pickle's BUILD does."""
    cdef object slots = None
    cdef object setter = getattr(value, "__setstate__", None)
    if setter is not None:
        setter(state)
        return 0
    if type(state) is tuple and len(state) == 2:
        state, slots = state
    if state:
        value.__dict__.update(state)
    if slots:
        for name, item in slots.items():
            setattr(value, name, item)
    return 0


cdef object decode(lease *owner, char *payload, uint64_t payload_bytes, bytes layout, loads):
    """Make a batch of memory behind a lease; takes one alias for each storage in it."""
    cdef Decoder decoder = Decoder.__new__(Decoder)
    decoder.layout = PyBytes_AS_STRING(layout)
    decoder.end = PyBytes_GET_SIZE(layout)
    decoder.payload = payload
    decoder.payload_bytes = payload_bytes
    decoder.owner = owner
    decoder.memo = []
    decoder.loads = loads
    batch = decoder.get()
    if decoder.position != decoder.end:
        decoder.broken(f"{decoder.end - decoder.position} bytes too many")
    return batch

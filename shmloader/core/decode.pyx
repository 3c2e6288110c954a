# A slot, or the blocks that it was copied out to, into a batch; and one record where it lies.
#
# The layout is copied out before it is read, and every length in it is checked against what is left
# of it, every leaf against the payload: a worker that writes nonsense gets WorkerBroken raised in
# the trainer, whatever it wrote. Pickles are checked against their sum before they are loaded.
#
# Nobody writes to a record any more, so it is read where it lies.
#
# Classes and functions are looked up by their names in each batch, because a module may be loaded,
# or a notebook's cell be run, again at any time.

import re
import zlib
from collections.abc import Mapping, Sequence
from sys import intern

import numpy

import shmloader.core.pickling as pickling
from shmloader.errors import WorkerBroken

cdef dict described_types = {}   # text -> the type; such types cannot be changed
cdef Py_ssize_t TYPES_KEPT = 256
cdef object unfinished = object()   # holds the number of an object that is still being read
# What describes a type of texts, bytes, voids, or of times in some unit.
cdef object text_of_type = re.compile(
    rb"[<>|](?:[SUV]\d{1,10}|[Mm]8(?:\[\d{0,10}[A-Za-z]{1,2}\])?)"
)


class DamagedRecord(ValueError):
    """A record's bytes are not what was written."""


@cython.final
@cython.internal
@cython.freelist(8)
cdef class Decoder:
    cdef const char *layout
    cdef size_t position
    cdef size_t end
    cdef const Places *places
    cdef const Place *place    # of the leaf taken last
    cdef lease *owner          # of the leaf taken last
    cdef lease *empty          # of all leaves without bytes; NULL: there was none
    cdef uint64_t payload_bytes
    cdef Alias alias
    cdef object mover          # takes the plain tensors; None: leaves stay where they lie
    cdef bint moves            # the leaf taken now is the mover's; others are copied out,
    cdef uint64_t small_bytes  # but for those that are longer: they stay where they lie
    cdef char *furthest        # the end of the tensors that stay
    cdef set finished          # ids of containers, if each tensor is moved as often as it is met
    cdef set inner             # of them those that an object holds, and nothing before it
    cdef Py_ssize_t parted     # tensors that were moved once more
    cdef int objects           # around it, of classes into which torch does not look
    cdef dict hidden           # by id of a tensor: what stands for it in those
    cdef int depth             # containers around it
    cdef list copied           # the aliases of what was copied out
    cdef list memo             # by number
    cdef bint is_record
    cdef tuple names           # of a list of records: its keys, by number; or None
    cdef Places own            # of a record: one place, its own
    cdef bint copies           # the leaves of a record are to be private memory
    cdef lease *block          # of that memory; NULL: there was no leaf yet

    def __dealloc__(self):
        if self.empty != NULL:
            lease_drop(self.empty)
        if self.block != NULL:
            lease_drop(self.block)

    cdef int broken(self, str what) except -1:
        if self.is_record:
            raise DamagedRecord(f"a record cannot be read at byte {self.position}: {what}")
        raise WorkerBroken(f"a batch's layout cannot be read at byte {self.position}: {what}")

    cdef const char *take(self, uint64_t count) except NULL:
        if count > self.end - self.position:
            self.broken(f"{count} bytes are missing")
        self.position += count
        return self.layout + self.position - count

    cdef int take_tag(self) except -1:
        return <uint8_t>self.take(1)[0]

    cdef int64_t take_number(self) except? -1:
        return self.take_numeral() if self.is_record else self.take_fixed()

    cdef int64_t take_fixed(self) except? -1:
        cdef int64_t value
        memcpy(&value, self.take(8), 8)
        return value

    cdef int64_t take_numeral(self) except? -1:
        cdef int64_t value = 0
        cdef size_t count = read_numeral(
            <const uint8_t *>self.layout + self.position, self.end - self.position, &value
        )
        if count == 0:
            self.broken("a number that does not end")
        self.position += count
        return value

    cdef Py_ssize_t take_count(self) except -1:
        """Read how many nodes follow; each is at least one byte long."""
        return self.check_count(self.take_number())

    cdef Py_ssize_t check_count(self, int64_t count) except -1:
        if count < 0 or <uint64_t>count > self.end - self.position:
            self.broken(f"a container of {count} items")
        return count

    cdef int check_ordinal(self) except -1:
        """Read the number of an object that begins here; it is appended to the memo next."""
        cdef uint32_t number
        if self.is_record:
            return 0
        memcpy(&number, self.take(4), 4)
        if <Py_ssize_t>number != len(self.memo):
            self.broken(f"object {number} instead of {len(self.memo)}")
        return 0

    cdef Py_ssize_t take_ordinal(self) except -1:
        """Read the number of an object that is finished after those inside it."""
        self.check_ordinal()
        self.memo.append(unfinished)
        return len(self.memo) - 1

    cdef bytes take_bytes(self):
        cdef Py_ssize_t count = self.take_count()
        return PyBytes_FromStringAndSize(self.take(count), count)

    cdef char *find_leaf(self, uint64_t offset, uint64_t length) except NULL:
        """Find a leaf by its offset in the payload, and the owner of its memory."""
        cdef char *start
        if offset > self.payload_bytes or length > self.payload_bytes - offset:
            self.broken(f"a value at {offset} of {length} bytes in a payload of "
                        f"{self.payload_bytes}")
        if length == 0:
            return self.find_nothing()
        if self.copies and self.block == NULL:
            self.copy_record()
        if not lies_in(self.place, offset, length):
            self.place = self.find_place(offset, length)
        self.owner = self.place.owner
        start = self.place.memory + (offset - self.place.start)
        if self.mover is not None and not self.moves and not self.may_stay(start, length):
            return self.copy_out(start, length)
        return start

    cdef char *copy_out(self, char *start, uint64_t length) except NULL:
        """Copy a leaf that is no mover's to a block of its own: its slot is free soon."""
        cdef lease *block = lease_block_new(length)
        cdef Alias alias
        cdef void *to
        if block == NULL:
            raise MemoryError(f"no private memory for a value of {length} bytes")
        alias = Alias.__new__(Alias)   # whose end drops the block's first alias
        alias.owner, alias.start, alias.length = block, <char *>lease_block_start(block), length
        self.copied.append(alias)
        to = lease_block_start(block)
        if length < UNLOCKED_BYTES:
            copy_plain(to, start, length)
        else:
            with nogil:
                copy_plain(to, start, length)
        self.owner = block
        return alias.start

    cdef const Place *find_place(self, uint64_t offset, uint64_t length) except NULL:
        """Find the place of a leaf; it is mostly the one after that of the leaf before."""
        cdef const Place *items = self.places.items
        cdef size_t low = self.place - items + 1
        cdef size_t high = self.places.count
        cdef size_t middle
        if low < high and lies_in(&items[low], offset, length):
            return &items[low]
        low = 0
        while low < high:
            middle = (low + high) // 2
            if items[middle].end <= offset:
                low = middle + 1
            else:
                high = middle
        if low < self.places.count and lies_in(&items[low], offset, length):
            return &items[low]
        self.broken(f"a value at {offset} of {length} bytes in none of the payload's stretches")

    cdef int copy_record(self) except -1:
        """Copy the whole record, of which the leaves are nearly all, with its alignment."""
        cdef uint64_t past = <size_t>self.layout % CACHE_LINE
        cdef char *start
        self.block = lease_block_new(past + self.payload_bytes)
        if self.block == NULL:
            raise MemoryError(f"no memory for a record of {self.payload_bytes} bytes")
        start = <char *>lease_block_start(self.block) + past
        with nogil:
            memcpy(start, self.layout, self.payload_bytes)
        self.own.whole.memory = start
        self.own.whole.owner = self.block
        return 0

    cdef char *find_nothing(self) except NULL:
        """Find a leaf without bytes: kept, it must hold no other memory."""
        if self.empty == NULL:
            self.empty = lease_block_new(0)
            if self.empty == NULL:
                raise MemoryError("no memory for a lease")
        self.owner = self.empty
        return <char *>lease_block_start(self.empty)

    cdef object get(self):
        cdef int tag = self.take_tag()
        cdef double real
        cdef object made
        if tag == TAG_TENSOR:
            return self.get_tensor(self.mover is not None)
        elif tag == TAG_ARRAY:
            return self.get_array()
        elif tag == TAG_INT:
            return PyLong_FromLongLong(self.take_number())
        elif tag == TAG_NONE:
            return None
        elif tag == TAG_STR:
            return self.get_str()
        elif tag == TAG_TRUE:
            return True
        elif tag == TAG_FALSE:
            return False
        elif tag == TAG_FLOAT:
            memcpy(&real, self.take(8), 8)
            return real
        elif tag == TAG_AGAIN:
            return self.get_again()
        elif tag == TAG_NUMBERED_STR:
            self.check_ordinal()
            return self.note(self.get_str())
        elif tag == TAG_BYTES:
            return self.take_bytes()
        elif tag == TAG_NUMBERED_BYTES:
            self.check_ordinal()
            return self.note(self.take_bytes())
        elif tag == TAG_COMPLEX:
            return self.get_complex()
        elif tag == TAG_BIG_INT:
            return int.from_bytes(self.take_bytes(), "little", signed=True)
        elif tag == TAG_LARGE_BYTES:
            return self.note(self.get_large_bytes())
        elif tag == TAG_NAMED:
            return self.get_named()
        elif tag == TAG_SCALAR:
            return self.get_scalar()
        elif tag == TAG_STORAGE:
            return self.get_storage()
        elif tag == TAG_INNER_TENSOR:
            return self.get_tensor(False)
        elif self.depth == DEPTH:
            self.broken(f"more than {DEPTH} levels")
        self.depth += 1
        made = self.get_container(tag)
        self.depth -= 1
        if self.finished is not None:
            self.finished.add(id(made))
            if self.objects:
                self.inner.add(id(made))
        return made

    cdef object get_container(self, int tag):
        if tag == TAG_LIST:
            return self.get_list()
        if tag == TAG_DICT:
            return self.get_dict(False)
        if tag == TAG_KEYED:
            return self.get_dict(True)
        if tag == TAG_FLOAT_LIST:
            return self.note(self.get_floats())
        if tag == TAG_INT_LIST:
            return self.note(self.get_ints())
        if tag == TAG_FLOAT_TUPLE:
            return self.note(tuple(self.get_floats()))
        if tag == TAG_INT_TUPLE:
            return self.note(tuple(self.get_ints()))
        if tag == TAG_TUPLE:
            return self.get_tuple()
        if tag == TAG_REDUCED:
            return self.get_reduced()
        if tag == TAG_PICKLED:
            return self.get_pickled()
        self.broken(f"tag {tag}")

    cdef object get_complex(self):
        cdef double parts[2]
        memcpy(parts, self.take(16), 16)
        return complex(parts[0], parts[1])

    cdef object get_again(self):
        cdef uint32_t number
        memcpy(&number, self.take(4), 4)
        return self.part(self.find_object(number))

    cdef object part(self, object found):
        """Make an object that is met again another time, as far as each is to be apart."""
        cdef Py_ssize_t parted = self.parted
        cdef object made
        if self.finished is None:
            return found
        if type(found) is Tensor:
            if self.objects and id(found) in self.hidden:
                return self.hidden[id(found)]
            self.parted += 1
            made = self.mover(found)
            if self.objects:
                self.hidden[id(found)] = made
            return made
        if id(found) not in self.finished:   # an atom, or it contains itself
            return found
        if type(found) is list:
            made = [self.part(item) for item in found]
        elif type(found) is tuple:
            made = tuple([self.part(item) for item in found])
        elif type(found) is dict:
            made = {key: self.part(item) for key, item in found.items()}
        else:
            return found
        # What two objects share, and holds no tensor, they go on to share.
        if self.objects and parted == self.parted and id(found) in self.inner:
            return found
        return made

    cdef object find_object(self, Py_ssize_t number):
        cdef object found = unfinished
        if 0 <= number < len(self.memo):
            found = self.memo[number]
        if found is unfinished:
            self.broken("a reference to no object")
        return found

    @cython.always_allow_keywords(False)
    def object_of(self, number):
        """Find the object with a number, for a pickle that refers to it."""
        # Compared before it is a number of C, which it may be too large for.
        if type(number) is int and 0 <= number < len(self.memo):
            return self.find_object(number)
        self.broken("a reference to no object")

    cdef object note(self, object made):
        """Keep an object, whose number was checked, for the references to it."""
        self.memo.append(made)
        return made

    cdef str get_str(self):
        cdef Py_ssize_t length = self.take_count()
        try:
            return decode_utf8(self.take(length), length, "surrogatepass")
        except UnicodeDecodeError:
            self.broken("a text that is not UTF-8")

    cdef list get_list(self):
        self.check_ordinal()
        cdef Py_ssize_t count = self.take_count(), _
        cdef list items = []
        self.memo.append(items)
        for _ in range(count):
            items.append(self.get())
        return items

    cdef tuple get_tuple(self):
        cdef Py_ssize_t number = self.take_ordinal()
        cdef Py_ssize_t count = self.take_count(), _
        cdef list items = []
        cdef tuple made
        for _ in range(count):
            items.append(self.get())
        made = tuple(items)
        self.memo[number] = made
        return made

    cdef dict get_dict(self, bint is_keyed):
        self.check_ordinal()
        cdef Py_ssize_t count = self.take_count(), _
        cdef dict items = {}
        cdef object key
        self.memo.append(items)
        for _ in range(count):
            key = self.get_key() if is_keyed else self.get()
            self.put_pair(items, key, self.get())
        return items

    cdef int put_pair(self, dict items, object key, object item) except -1:
        try:
            items[key] = item
        except TypeError:
            if type(key) not in (list, dict, tuple):
                raise   # by the key's own code
            self.broken(f"a key of type {type(key).__name__}")
        return 0

    cdef object get_key(self):
        cdef uint16_t name
        memcpy(&name, self.take(2), 2)
        if name == NO_NAME:
            return self.get()
        if self.names is None or name >= len(self.names):
            self.broken(f"a key of number {name}")
        return self.names[name]

    cdef list get_floats(self):
        cdef Py_ssize_t count, i
        cdef const char *start
        cdef double value
        cdef list items
        self.check_ordinal()
        count = self.take_count()
        start = self.take(8 * <uint64_t>count)
        items = PyList_New(count)
        for i in range(count):
            memcpy(&value, start + 8 * i, 8)
            put_item(items, i, value)
        return items

    cdef list get_ints(self):
        cdef Py_ssize_t count, _
        cdef list items = []
        self.check_ordinal()
        count = self.take_count()
        for _ in range(count):
            items.append(PyLong_FromLongLong(self.take_number()))
        return items

    cdef bytes get_large_bytes(self):
        cdef uint64_t length, offset
        cdef char *start
        cdef bint copies = self.copies
        self.check_ordinal()
        length = <uint64_t>self.take_number()
        offset = <uint64_t>self.take_fixed()
        self.copies = False   # they are copied anyway
        try:
            start = self.find_leaf(offset, length)
        finally:
            self.copies = copies
        return PyBytes_FromStringAndSize(start, length)

    cdef int take_dims(self, int ndim, int64_t *dims) except -1:
        cdef int i
        if ndim > 0:
            memcpy(dims, self.take(8 * ndim), 8 * ndim)
        for i in range(ndim):
            if dims[i] < 0:
                self.broken(f"a dimension or stride of {dims[i]}")
        return 0

    cdef object get_tensor(self, bint moves):
        cdef DLDataType dtype
        cdef int64_t shape[MAX_DIMS]
        cdef int64_t strides[MAX_DIMS]
        cdef uint64_t offset, bytes_
        cdef char *start
        cdef object tensor
        self.check_ordinal()
        dtype.code = self.take_tag()
        dtype.bits = self.take_tag()
        dtype.lanes = 1
        cdef int ndim = self.take_tag()
        if ndim > MAX_DIMS or not is_known_type(dtype):
            self.broken(f"a tensor of {ndim} dimensions and type {dtype.code}, {dtype.bits}")
        offset = <uint64_t>self.take_fixed()
        self.take_dims(ndim, shape)
        self.take_dims(ndim, strides)
        bytes_ = self.tensor_bytes(ndim, shape, strides, dtype.bits // 8)
        self.moves = moves
        start = self.find_leaf(offset, bytes_)
        tensor = tensor_over(self.owner, start, dtype, ndim, shape, strides)
        self.moves = False
        if moves and not self.may_stay(start, bytes_):
            tensor = self.mover(tensor)
        if self.objects:
            self.hidden[id(tensor)] = tensor
        self.memo.append(tensor)
        return tensor

    cdef bint may_stay(self, char *start, uint64_t length) noexcept:
        """Returns True for a leaf that may be a view: a large one with memory of its own."""
        # torch pins each tensor by itself, so two that share memory here do not share it there.
        if length <= self.small_bytes or start < self.furthest:
            return False
        self.furthest = start + length
        return True

    cdef uint64_t tensor_bytes(self, int ndim, const int64_t *shape, const int64_t *strides,
                               uint64_t item_bytes) except? 0:
        """The bytes from a tensor's first element to its last, refusing sizes that overflow."""
        cdef uint64_t last = 0
        cdef uint64_t limit = self.payload_bytes
        cdef uint64_t elements = 1
        cdef bint empty = self.is_empty(ndim, shape)
        cdef int i
        for i in range(ndim):
            # As torch counts: axis by axis, so that a later 0 does not excuse an overflow.
            if elements > 0 and <uint64_t>shape[i] > MAX_ELEMENTS // elements:
                self.broken(f"a tensor of more than {MAX_ELEMENTS} elements")
            elements *= <uint64_t>shape[i]
            if not empty and shape[i] > 1 and strides[i] > 0:
                if <uint64_t>strides[i] > limit or <uint64_t>(shape[i] - 1) > limit // strides[i]:
                    self.broken(f"a dimension of {shape[i]} with stride {strides[i]}")
                last += <uint64_t>(shape[i] - 1) * <uint64_t>strides[i]
        return 0 if empty else (last + 1) * item_bytes

    cdef bint is_empty(self, int ndim, const int64_t *shape) noexcept:
        cdef int i
        for i in range(ndim):
            if shape[i] == 0:
                return True
        return False

    cdef cnp.dtype get_dtype(self):
        # Not get(): a type is no container, so types cannot nest.
        cdef int tag = self.take_tag()
        cdef object value = None
        cdef int64_t number
        if tag == TAG_INT:
            number = self.take_number()
            if is_number_type(number):
                return cnp.PyArray_DescrFromType(<int>number)
        elif tag == TAG_STR:
            value = self.get_described_type()
        elif tag == TAG_DTYPE:
            value = self.get_pickled_type()
        elif tag == TAG_AGAIN:
            value = self.get_again()
        if isinstance(value, numpy.dtype) and not value.hasobject:
            return value
        self.broken(f"an array whose type is a {type(value).__name__}, tag {tag}")

    cdef object get_described_type(self):
        cdef bytes text = self.take_bytes()
        cdef object found = described_types.get(text)
        if found is not None:
            return found
        if text_of_type.fullmatch(text) is None:
            self.broken("a text that describes no type of arrays")
        try:
            found = numpy.dtype(text.decode())
        except (TypeError, ValueError, OverflowError):
            self.broken("a text that describes no type of arrays")
        if len(described_types) >= TYPES_KEPT:
            described_types.clear()
        described_types[text] = found
        return found

    cdef object get_pickled_type(self):
        cdef Py_ssize_t number = self.take_ordinal()
        cdef object dtype = type_of_pickle(self.take_checked())
        self.memo[number] = dtype
        return dtype

    cdef bytes take_checked(self):
        """Read bytes and compare them with their checksum."""
        cdef bytes text = self.take_bytes()
        cdef uint32_t checksum
        memcpy(&checksum, self.take(4), 4)
        # No fill of memory passes: the sum of nothing is 0.
        if not text or zlib.crc32(text) != checksum:
            self.broken("a name that does not match its checksum")
        return text

    cdef object get_named(self):
        cdef Py_ssize_t number = self.take_ordinal()
        cdef str module, name
        try:
            module, name = self.take_checked().decode().split("\n")
        except ValueError:
            self.broken("a name without a module")
        self.memo[number] = pickling.Unpickler.find_global(module, name)
        return self.memo[number]

    cdef object get_array(self):
        cdef cnp.npy_intp shape[MAX_DIMS]
        cdef Py_ssize_t number = self.take_ordinal()
        cdef cnp.dtype dtype
        cdef uint64_t offset, length
        cdef char *start
        cdef int i, fortran, ndim
        cdef object array
        fortran = self.take_tag()
        ndim = self.take_tag()
        if ndim > MAX_DIMS:
            self.broken(f"an array of {ndim} dimensions")
        offset = <uint64_t>self.take_fixed()
        self.take_dims(ndim, <int64_t *>shape)
        dtype = self.get_dtype()
        # If it is empty, whatever the other dimensions are.
        length = 0 if self.is_empty(ndim, <int64_t *>shape) else dtype.itemsize
        for i in range(ndim):
            if length > 0 and length > self.payload_bytes // shape[i]:
                self.broken(f"an array dimension of {shape[i]}")
            length *= <uint64_t>shape[i]
        start = self.find_leaf(offset, length)
        if self.alias is None or self.alias.owner != self.owner:
            self.alias = take_alias(self.owner, start, length)
        try:
            array = array_over(self.alias, start, dtype, ndim, shape, fortran)
        except ValueError:
            self.broken("an array that numpy cannot make")
        if <uint64_t>cnp.PyArray_NBYTES(array) != length:
            # numpy 1 may make texts of 0 characters longer.
            self.broken(f"an array of type {dtype}, which this numpy does not make")
        self.memo[number] = array
        return array

    cdef object get_scalar(self):
        cdef Py_ssize_t number = self.take_ordinal()
        cdef cnp.dtype dtype = self.get_dtype()
        cdef int tag = self.take_tag()
        cdef bytes raw = self.take_bytes()
        if tag != TAG_BYTES or len(raw) != dtype.itemsize:
            self.broken(f"a scalar of type {dtype}")
        try:
            # A structured scalar is a view of this memory, so it must be writable.
            self.memo[number] = (numpy.frombuffer(bytearray(raw), dtype)[0] if raw
                                 else numpy.zeros((), dtype)[()])
        except Exception:   # such as characters that Unicode does not have
            self.broken(f"the value of a scalar of type {dtype}")
        return self.memo[number]

    cdef object get_reduced(self):
        cdef Py_ssize_t number = self.take_ordinal()
        cdef object build = self.get()
        cdef bint hides = build is not None and self.hides(build)
        cdef object args, value, state, items
        cdef dict pairs
        cdef int tag
        self.objects += hides
        args = self.get()
        if type(args) is not tuple or not (callable(build) or build is None):
            # Not their repr: that of nonsense may be longer than any memory.
            self.broken(f"an object built by a {type(build).__name__}")
        if build is None:
            if not args or not isinstance(args[0], type):
                self.broken("an object without a class")
            value = args[0].__new__(*args)
            hides = self.hides(args[0])
            self.objects += hides
        else:
            value = build(*args)
        self.memo[number] = value
        state = self.get()
        items = self.get()
        if type(items) is not list:
            self.broken(f"an object with a {type(items).__name__} of items")
        tag = self.take_tag()
        if tag != TAG_DICT and tag != TAG_KEYED:
            self.broken(f"pairs of tag {tag}")
        pairs = self.get_dict(tag == TAG_KEYED)
        # The state comes last, as in pickle: a container's own methods may have changed it.
        if items:
            value.extend(items) if hasattr(value, "extend") else [value.append(i) for i in items]
        for key, item in pairs.items():
            value[key] = item
        if state is not None:
            set_state(value, state)
        self.objects -= hides
        return value

    cdef bint hides(self, object build):
        """Returns True if torch leaves what this makes, a class or a function, as it is."""
        if self.finished is None or not isinstance(build, type):
            return self.finished is not None
        return not (issubclass(build, (Mapping, Sequence)) or hasattr(build, "pin_memory"))

    cdef object get_pickled(self):
        cdef Py_ssize_t number = self.take_ordinal()
        cdef Py_ssize_t count = self.check_count(self.take_fixed()), _
        for _ in range(count):
            self.get()   # a leaf that the pickle refers to
        if self.take_tag() != TAG_PICKLE:
            self.broken("no pickle after its values")
        self.memo[number] = self.get_pickle()
        return self.memo[number]

    cdef object get_pickle(self):
        cdef Py_ssize_t count = self.take_count(), _
        cdef int64_t checksum = self.take_number()
        cdef list parts = []
        cdef bytes pickled
        for _ in range(count + 1):
            parts.append(self.take_part())
        # Copied out before it is summed: its worker may still write to it.
        pickled = bytes(parts[0])
        if not pickled or zlib.crc32(pickled) != checksum:
            self.broken("a pickle that does not match its checksum")
        return pickling.loads(pickled, self.object_of, parts[1:])

    cdef object get_storage(self):
        cdef Py_ssize_t number = self.take_ordinal()
        self.memo[number] = self.take_part().storage()
        return self.memo[number]

    cdef Alias take_part(self):
        cdef uint64_t length = <uint64_t>self.take_number()
        cdef char *start = self.find_leaf(<uint64_t>self.take_fixed(), length)
        return take_alias(self.owner, start, length)


cdef inline bint lies_in(const Place *place, uint64_t offset, uint64_t length) noexcept:
    return (place.start <= offset < place.end
            and length <= place.end - offset)


cdef inline int put_item(list items, Py_ssize_t at, object item) except -1:
    """Fill a place of a list that was made with its length."""
    Py_INCREF(item)
    PyList_SET_ITEM(items, at, item)
    return 0


cdef int set_state(object value, object state) except -1:
    """Give a rebuilt object its state, as pickle's BUILD does."""
    cdef object slots = None
    cdef object attributes, name, item
    cdef object setter = getattr(value, "__setstate__", None)
    if setter is not None:
        setter(state)
        return 0
    if type(state) is tuple and len(state) == 2:
        state, slots = state
    if state:
        attributes = value.__dict__
        if type(state) is not dict:
            attributes.update(state)
        else:
            for name, item in (<dict>state).items():
                # One name for all objects of the process, as those that Python sets have.
                attributes[intern(name) if type(name) is str else name] = item
    if slots:
        for name, item in slots.items():
            setattr(value, name, item)
    return 0


cdef object decode(const Places *places, uint64_t payload_bytes, bytes layout, mover=None,
                   uint64_t small_bytes=NO_LEAF, bint apart=False):
    """
    Make a batch of its leaves in their places; takes one alias for each storage in it.

    With a mover, which is called for each plain tensor of its containers, what it returns stands
    in the tensor's place, and all other leaves are copied out. Leaves longer than small_bytes stay.
    With `apart` a tensor that is met again is the mover's too, as torch pins it once more.
    """
    cdef Decoder decoder = Decoder.__new__(Decoder)
    decoder.layout = PyBytes_AS_STRING(layout)
    decoder.end = PyBytes_GET_SIZE(layout)
    decoder.position = skip_stretches(layout)
    decoder.places = places
    decoder.place = places.items
    decoder.payload_bytes = payload_bytes
    decoder.mover, decoder.small_bytes = mover, small_bytes
    decoder.copied = []
    decoder.memo = []
    decoder.finished = set() if apart else None
    decoder.inner = set() if apart else None
    decoder.hidden = {} if apart else None
    try:
        batch = decoder.get()
        if decoder.position != decoder.end:
            decoder.broken(f"{decoder.end - decoder.position} bytes too many")
        return batch
    finally:
        # An error's traceback may refer to the decoder.
        decoder.memo = decoder.mover = None


cdef object decode_record(char *start, uint64_t length, lease *owner, Alias alias, tuple names,
                          bint copies):
    """
    Make an object of a record.

    Its leaves are views of memory behind a lease, or copies, which do not use that lease.
    """
    cdef Decoder decoder = Decoder.__new__(Decoder)
    decoder.is_record = True
    decoder.layout = start
    decoder.end = decoder.payload_bytes = length
    decoder.own.whole = Place(0, length, start, owner)
    decoder.own.items = &decoder.own.whole
    decoder.own.count = 1
    decoder.places = &decoder.own
    decoder.place = decoder.own.items
    decoder.names = names
    decoder.copies = copies
    decoder.alias = alias
    decoder.memo = []
    try:
        return decoder.get()
    finally:
        decoder.memo = None

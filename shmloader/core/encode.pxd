# A batch into a slot, or a record into a buffer.

cimport cython
cimport numpy as cnp
from libc.stdint cimport int64_t, uint64_t

from shmloader.core.csrc cimport DLTensor, slot_answer

cdef enum:
    NO_NAME = 0xFFFF   # instead of a key's number: the key itself follows


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
    cdef dict reducible        # type -> is_reducible() of it
    cdef SlotMemory memory     # None: a record is written
    cdef bint is_record
    cdef dict names            # of a list of records: key -> its number; or None
    cdef object Pickler
    cdef object pickler        # of this batch; None until something has to be pickled

    cdef int begin_again(self) except -1
    cdef char *extend(self, size_t count) except NULL
    cdef int put_tag(self, int tag) except -1
    cdef int put_number(self, int64_t value) except -1
    cdef int put_fixed(self, int64_t value) except -1
    cdef int put_numeral(self, int64_t value) except -1
    cdef int put_text(self, const char *text, Py_ssize_t length) except -1
    cdef int put_bytes(self, int tag, bytes text) except -1
    cdef int64_t offset_of(self, const char *start, uint64_t length) noexcept
    cdef int put_source(self, char *start, uint64_t length, uint64_t item_bytes) except -1
    cdef int64_t *known(self, object value) except NULL
    cdef int put_own_number(self) except -1
    cdef int put_ordinal(self, int64_t number) except -1
    cdef bint begin(self, int tag, object value) except -1
    cdef int put_again(self, object value, int64_t known) except -1
    cdef int put(self, object value) except -1
    cdef int put_whole(self, object value) except -1
    cdef int put_double(self, double value) except -1
    cdef void note_reference(self, int64_t number) noexcept
    cdef int put_container(self, object value, object kind) except -1
    cdef int put_object(self, object value, object kind) except -1
    cdef int put_int(self, object value) except -1
    cdef int put_str(self, object value) except -1
    cdef int put_raw(self, object value) except -1
    cdef int put_large_bytes(self, bytes value) except -1
    cdef bint begin_text(self, int tag, int numbered_tag, object value) except -1
    cdef int put_list(self, list value) except -1
    cdef int put_floats(self, int tag, object value) except -1
    cdef int put_ints(self, int tag, object value) except -1
    cdef int put_tuple(self, tuple value) except -1
    cdef int64_t leave_unfinished(self, object value) except -1
    cdef int put_dict(self, dict value) except -1
    cdef int put_keyed(self, dict value) except -1
    cdef object number_name(self, object key)
    cdef int put_tensor(self, object tensor) except -1
    cdef int put_plain_tensor(self, object tensor, const DLTensor *is_) except -1
    cdef char *start_in_storage(self, object tensor, char *start, uint64_t length) except NULL
    cdef int put_array(self, cnp.ndarray array) except -1
    cdef int put_dtype(self, cnp.dtype dtype) except -1
    cdef int put_checked(self, bytes text) except -1
    cdef int put_scalar(self, object value) except -1
    cdef int put_named(self, object value) except -1
    cdef int put_reduced(self, object value) except -1
    cdef int put_pickled(self, object value) except -1
    cdef object number_of_leaf(self, object value, object kind)
    cdef object number_of_storage(self, object storage)
    cdef int put_part(self, object part) except -1
    cdef uint64_t join_stretches(self, uint64_t payload_bytes) except? 0
    cdef int finish(self, slot_answer *draft) except -1
    cdef uint64_t place_record(self, uint64_t position) except? 0
    cdef void write_record(self, char *to, uint64_t length) noexcept


cdef int encode(SlotMemory memory, batch, Pickler) except -1

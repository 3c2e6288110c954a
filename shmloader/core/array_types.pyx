# What describes the type of an array: a number, a text, or its pickle.
#
# Files give each array of records a type of its own, and a pickle takes longer than the array. So
# that of the last such type is kept here, and what it gives there; each array gets a copy, because
# the names of a type may be changed.

import pickle

import numpy

cdef tuple last_written = (None, None)   # a type of simple fields, and its pickle
cdef tuple last_read = (None, None)


cdef bint is_number_type(int64_t number) noexcept:
    return 0 <= number < cnp.NPY_OBJECT or number == NPY_HALF


cdef bint is_described_by_text(cnp.dtype dtype):
    """Returns True if its text is all of a type that is no native number type."""
    return (
        dtype.kind in (c"S", c"U", c"V", c"M", c"m")
        and dtype.num <= NPY_HALF
        and (<object>dtype).names is None
        and dtype.byteorder in (c"=", c"|")
        and (dtype.kind != c"V" or (<object>dtype).type is numpy.void)
    )


cdef bint is_described(cnp.dtype dtype):
    """Returns True if a type's number or its text is all of it."""
    if is_number_type(dtype.num) and dtype is cnp.PyArray_DescrFromType(dtype.num):
        return True
    if dtype.metadata is not None:
        return False
    if is_number_type(dtype.num) and dtype.byteorder in (c"=", c"|"):
        return True
    return is_described_by_text(dtype)


cdef bint has_simple_fields(cnp.dtype dtype):
    """Returns True if a copy of the type shares nothing with it that can be changed."""
    cdef object names = (<object>dtype).names
    cdef object fields
    cdef tuple field
    if names is None or dtype.metadata is not None:
        return False
    fields = (<object>dtype).fields
    for field in fields.values():
        if not is_described(field[0]) or field[0].subdtype is not None:
            return False
    return len(fields) == len(names)   # a title is one more


cdef bint is_same_type(object one, object other):
    """Returns True if two types of simple fields have one pickle."""
    return (
        one == other
        and one.names == other.names
        and one.type is other.type
        and one.isalignedstruct == other.isalignedstruct
    )


cdef bytes pickle_of_type(cnp.dtype dtype):
    """Return the pickle of a type that is not described otherwise."""
    global last_written
    cdef tuple last = last_written
    cdef bytes text
    if not has_simple_fields(dtype):
        return pickle.dumps(dtype, 5)
    if last[0] is None or not is_same_type(last[0], dtype):
        text = pickle.dumps(dtype, 5)
        last = last_written = (PyArray_DescrNew(dtype), text)
    return last[1]


cdef object type_of_pickle(bytes text):
    """Return the type that a pickle describes, or what else it is."""
    global last_read
    cdef tuple last = last_read
    cdef object found
    if last[1] == text:
        return PyArray_DescrNew(last[0])
    found = pickle.loads(text)
    if isinstance(found, numpy.dtype) and has_simple_fields(found):
        last_read = (PyArray_DescrNew(found), text)
    return found

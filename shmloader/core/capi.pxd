# Declarations of Python's and numpy's C interface that Cython's own lack.

cimport numpy as cnp


cdef extern from "Python.h":
    void drop_reference "Py_DECREF"(void *)

    bint PyUnicode_IS_COMPACT_ASCII(object text)
    const char *ascii_of "(const char *) PyUnicode_DATA"(object text)   # of a compact one
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    object encode_text "PyUnicode_AsEncodedString"(
        object text, const char *encoding, const char *errors)
    str decode_utf8 "PyUnicode_DecodeUTF8"(const char *text, Py_ssize_t length, const char *errors)

    ctypedef object (*getter)(object, void *)
    ctypedef struct PyGetSetDef:
        getter get
        void *closure
    ctypedef struct PyGetSetDescrObject:
        PyGetSetDef *d_getset


cdef extern from "numpy/arrayobject.h":
    enum:
        NPY_HALF   # the last of numpy's own numbers of types
    cnp.dtype PyArray_DescrNew(cnp.dtype dtype)   # a shallow copy

    # Steals the reference to dtype.
    object new_array "PyArray_NewFromDescr"(
        void *subtype, cnp.dtype dtype, int ndim, const cnp.npy_intp *shape,
        const cnp.npy_intp *strides, void *data, int flags, void *prototype)

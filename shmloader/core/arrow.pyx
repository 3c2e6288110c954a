# Memory of arrays for other libraries, and theirs for us, by Arrow's C data interface: two structs
# that its specification fixes, each in a capsule that frees it.
#
# What is lent to a library is one flat array of numbers, which lives as long as the library holds
# the capsule. What a library lends may be nested; the numbers in its innermost array are seen.

cimport cython
cimport numpy as cnp
from cpython.pycapsule cimport PyCapsule_Destructor, PyCapsule_GetPointer, PyCapsule_New
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free

from shmloader.core.capi cimport drop_reference, new_array


cdef struct ArrowSchema:
    const char *format
    const char *name
    const char *metadata
    int64_t flags
    int64_t n_children
    ArrowSchema **children
    ArrowSchema *dictionary
    void (*release)(ArrowSchema *) noexcept
    void *private_data


cdef struct ArrowArray:
    int64_t length
    int64_t null_count
    int64_t offset
    int64_t n_buffers
    int64_t n_children
    const void **buffers
    ArrowArray **children
    ArrowArray *dictionary
    void (*release)(ArrowArray *) noexcept
    void *private_data


# What a lent array needs until the library releases it, wherever that moves the struct above.
cdef struct Loan:
    void *array   # a reference
    const void *buffers[2]   # the first would say which values are missing


cdef dict TYPE_OF = {b"C": cnp.NPY_UINT8, b"s": cnp.NPY_INT16, b"i": cnp.NPY_INT32,
                     b"f": cnp.NPY_FLOAT32}


cdef void release_schema(ArrowSchema *schema) noexcept:
    schema.release = NULL   # its texts live as long as the process


cdef void release_array(ArrowArray *array) noexcept with gil:
    cdef Loan *loan = <Loan *>array.private_data
    array.release = NULL
    drop_reference(loan.array)
    free(loan)


cdef void free_schema(object capsule) noexcept:
    cdef ArrowSchema *schema = <ArrowSchema *>PyCapsule_GetPointer(capsule, "arrow_schema")
    if schema.release != NULL:
        schema.release(schema)
    free(schema)


cdef void free_array(object capsule) noexcept:
    cdef ArrowArray *array = <ArrowArray *>PyCapsule_GetPointer(capsule, "arrow_array")
    if array.release != NULL:
        array.release(array)
    free(array)


cdef void *zeroed(size_t count) except NULL:
    cdef void *made = calloc(1, count)
    if made == NULL:
        raise MemoryError(f"no memory for {count} bytes that describe an array")
    return made


cdef const char *format_of(int number) except NULL:
    if number == cnp.NPY_UINT8:
        return "C"
    if number == cnp.NPY_INT16:
        return "s"
    if number == cnp.NPY_INT32:
        return "i"
    if number == cnp.NPY_FLOAT32:
        return "f"
    raise TypeError(f"no array of numpy's type {number} is lent")


cdef object in_capsule(void *made, const char *name, PyCapsule_Destructor destructor):
    try:
        return PyCapsule_New(made, name, destructor)
    except BaseException:
        free(made)
        raise


@cython.final
cdef class ArrowLoan:
    """
    A flat array for libraries that take arrays by Arrow's C data interface, without a copy.

    What they make of it holds the array.
    """

    cdef cnp.ndarray array

    def __init__(self, cnp.ndarray array):
        if array is None:
            raise TypeError("only an array is lent")
        if array.ndim != 1 or not cnp.PyArray_IS_C_CONTIGUOUS(array):
            raise ValueError("only a flat array without gaps is lent")
        format_of(array.descr.num)
        self.array = array

    def __arrow_c_array__(self, requested_schema=None):
        """Make the two capsules: what the array is, and where it lies."""
        return self.schema(), self.lent()

    cdef object schema(self):
        cdef ArrowSchema *schema = <ArrowSchema *>zeroed(sizeof(ArrowSchema))
        schema.format, schema.name = format_of(self.array.descr.num), ""
        schema.release = release_schema
        return in_capsule(schema, "arrow_schema", free_schema)

    cdef object lent(self):
        cdef ArrowArray *array = <ArrowArray *>zeroed(sizeof(ArrowArray))
        cdef object capsule = in_capsule(array, "arrow_array", free_array)
        cdef Loan *loan = <Loan *>zeroed(sizeof(Loan))
        Py_INCREF(self.array)
        loan.array = <void *>self.array
        loan.buffers[1] = cnp.PyArray_DATA(self.array)
        array.length = cnp.PyArray_SIZE(self.array)
        array.n_buffers, array.buffers = 2, loan.buffers
        array.private_data, array.release = loan, release_array
        return capsule


def array_of_arrow(lender):
    """
    See the numbers of what has `__arrow_c_array__`, where they lie.

    Returns:
        A flat array over the lender's memory; it must not be written to.

    Raises:
        TypeError: They are of a type that is not lent, some are missing, or there are others too.
    """
    cdef ArrowSchema *schema
    cdef ArrowArray *array
    cdef cnp.npy_intp length
    cdef cnp.dtype dtype
    cdef object seen
    schemas, arrays = lender.__arrow_c_array__()
    schema = <ArrowSchema *>PyCapsule_GetPointer(schemas, "arrow_schema")
    array = <ArrowArray *>PyCapsule_GetPointer(arrays, "arrow_array")
    while schema.n_children == 1 and array.n_children == 1 and array.null_count == 0:
        schema, array = schema.children[0], array.children[0]
    number = TYPE_OF.get(<bytes>schema.format)
    if number is None or array.n_buffers != 2 or array.null_count != 0:
        raise TypeError(f"an Arrow array of format {<bytes>schema.format}")
    length = array.length
    dtype = cnp.PyArray_DescrFromType(number)
    Py_INCREF(dtype)   # which the next call takes
    seen = new_array(
        <void *>ndarray, dtype, 1, &length, NULL,
        <char *>array.buffers[1] + array.offset * dtype.itemsize, 0, NULL,
    )
    cnp.set_array_base(seen, arrays)   # whose end gives the memory back
    return seen

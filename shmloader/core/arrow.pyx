# Memory of other libraries, by Arrow's C data interface: two structs that its specification fixes,
# each in a capsule that frees it. What a library lends may be nested; the numbers in its innermost
# array are seen.

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


cdef dict TYPE_OF = {b"C": cnp.NPY_UINT8, b"s": cnp.NPY_INT16, b"i": cnp.NPY_INT32,
                     b"f": cnp.NPY_FLOAT32}


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

# Samples side by side into one piece of memory. Each function returns None if it does not apply,
# and the caller falls back to torch's own collate with its own results and messages.

cdef int levels = 0    # that the walk is inside of; it is the worker's main thread alone that walks


cdef bint is_row(samples):
    """Returns True for a list or tuple that is not empty: it may be read by index, unchecked."""
    return (type(samples) is list or type(samples) is tuple) and len(samples) > 0


cdef bint same_kind(const DLTensor *a, const DLTensor *b):
    cdef int i
    if a.ndim != b.ndim or a.dtype.code != b.dtype.code or a.dtype.bits != b.dtype.bits:
        return False
    for i in range(a.ndim):
        if a.shape[i] != b.shape[i]:
            return False
    return True


cdef bint describe_sample(sample, kind, DLTensor *description) except -1:
    """Describe an exact tensor or array of plain contiguous memory; returns False for others."""
    if type(sample) is not kind:
        return False
    if kind is Tensor:
        return plain_tensor(sample, description) and is_contiguous(description)
    return describe_array(sample, description)


cdef object gather_pieces(SlotMemory memory, kind, samples):
    """Stack tensors or ndarrays of one dtype and shape into a tensor."""
    cdef Py_ssize_t count = len(samples), i
    cdef bytes pieces = PyBytes_FromStringAndSize(NULL, count * sizeof(void *))
    cdef const void **starts = <const void **>PyBytes_AS_STRING(pieces)
    cdef DLTensor first, other
    if not describe_sample(samples[0], kind, &first):
        return None
    starts[0] = tensor_start(&first)
    for i in range(1, count):
        if not describe_sample(samples[i], kind, &other) or not same_kind(&first, &other):
            return None
        starts[i] = tensor_start(&other)
    return stack_pieces(memory, starts, count, first.dtype, first.ndim, first.shape)


cdef object stack_pieces(SlotMemory memory, const void **starts, Py_ssize_t count,
                         DLDataType dtype, int ndim, const int64_t *sample_shape):
    """Copy samples of one type and shape side by side."""
    cdef int64_t shape[MAX_DIMS]
    cdef size_t piece_bytes = dtype.bits // 8
    cdef int i
    cdef char *start
    if ndim >= MAX_DIMS:
        return None
    shape[0] = count
    for i in range(ndim):
        shape[i + 1] = sample_shape[i]
        piece_bytes *= <size_t>sample_shape[i]
    start = memory.allocate(count * piece_bytes)
    with nogil:
        copy_gather(start, starts, count, piece_bytes)
    return memory.tensor_at(start, dtype, ndim + 1, shape)


cdef bint describe_array(cnp.ndarray array, DLTensor *description) except -1:
    """Describe an array as the tensor that torch.as_tensor makes; False if torch refuses it."""
    # Leave read-only arrays to torch.as_tensor, which warns about them.
    if not cnp.PyArray_ISCARRAY(array) or not dlpack_type_of(array, &description.dtype):
        return False
    description.data, description.byte_offset = cnp.PyArray_DATA(array), 0
    description.ndim, description.shape = array.ndim, <int64_t *>array.shape
    return True


cdef bint dlpack_type_of(cnp.ndarray array, DLDataType *dtype):
    """Find the type of the tensor of an array, or return False."""
    cdef int kind = array.descr.kind
    dtype.bits = <uint8_t>(8 * cnp.PyArray_ITEMSIZE(array))
    dtype.lanes = 1
    if kind == c"f" and dtype.bits in (16, 32, 64):
        dtype.code = kDLFloat
    elif kind == c"i":
        dtype.code = kDLInt
    elif kind == c"u":
        dtype.code = kDLUInt
    elif kind == c"b":
        dtype.code = kDLBool
    elif kind == c"c" and dtype.bits in (64, 128):
        dtype.code = kDLComplex
    else:
        return False
    return True


cdef inline bint are_floats(object items):
    """Returns True if a list or tuple has items, and all are exact floats."""
    cdef object item
    for item in items:
        if type(item) is not float:
            return False
    return len(items) > 0


cdef bint are_short_ints(object items) except -1:
    """Returns True if a list or tuple has items, and all are exact ints that fit into 64 bits."""
    cdef object item
    cdef int overflow = 0
    for item in items:
        if type(item) is not int:
            return False
        PyLong_AsLongLongAndOverflow(item, &overflow)
        if overflow:
            return False
    return len(items) > 0


cdef object gather_numbers(SlotMemory memory, samples):
    """Turn exact floats into a float64 tensor (B,), or exact ints that fit into an int64 one."""
    cdef Py_ssize_t count = len(samples), i = 0
    cdef int64_t shape[1]
    cdef DLDataType dtype
    cdef int overflow = 0
    cdef bint has_floats = are_floats(samples)
    cdef int64_t *start
    cdef int64_t word
    cdef double real
    cdef object sample
    if not has_floats and not are_short_ints(samples):
        return None
    start = <int64_t *>memory.allocate(count * 8)
    for sample in samples:
        if has_floats:
            real = PyFloat_AS_DOUBLE(sample)
            memcpy(&word, &real, 8)
        else:
            word = PyLong_AsLongLongAndOverflow(sample, &overflow)
        start[i] = word
        STEP("gather: number")
        i += 1
    dtype.code, dtype.bits, dtype.lanes = kDLFloat if has_floats else kDLInt, 64, 1
    shape[0] = count
    return memory.tensor_at(<char *>start, dtype, 1, shape)


cdef object collate_samples(SlotMemory memory, samples, dict functions, original):
    """
    Collate as torch's collate() does with its stock functions, without Python code per sample.

    Covers exact lists, tuples and dicts of what the gathers above cover; everything else, and
    every error, is original's, which comes back here for the parts. So is a sample that contains
    itself: original ends in a RecursionError, this walk would end with the stack.
    """
    global levels
    cdef object kind, collated
    if not is_row(samples):
        return original(samples, collate_fn_map=functions)
    kind = type(samples[0])
    if kind is tuple or kind is list or kind is dict:
        if levels == DEPTH:
            return original(samples, collate_fn_map=functions)
        levels += 1
        try:
            if kind is dict:
                return collate_dicts(memory, samples, functions, original)
            return collate_sequences(memory, samples, functions, original)
        finally:
            levels -= 1
    collated = gather_kind(memory, kind, samples)
    return original(samples, collate_fn_map=functions) if collated is None else collated


cdef object gather_kind(SlotMemory memory, kind, samples):
    """Gather samples by the type of the first; None if torch has to."""
    if kind is Tensor or kind is ndarray:
        return gather_pieces(memory, kind, samples)
    return gather_numbers(memory, samples) if kind is int or kind is float else None


cdef object collate_sequences(SlotMemory memory, samples, dict functions, original):
    cdef Py_ssize_t width = len(samples[0]), i
    cdef object sample
    for sample in samples:
        if (type(sample) is not tuple and type(sample) is not list) or len(sample) != width:
            return original(samples, collate_fn_map=functions)
    return [
        collate_samples(memory, column(samples, i), functions, original) for i in range(width)
    ]


cdef tuple column(samples, Py_ssize_t index):
    """The index-th part of each sample; a tuple, because torch's string leaves are that."""
    cdef Py_ssize_t count = len(samples), i = 0
    cdef tuple parts = PyTuple_New(count)
    cdef object sample, part
    for sample in samples:
        part = (<tuple>sample)[index] if type(sample) is tuple else (<list>sample)[index]
        Py_INCREF(part)
        PyTuple_SET_ITEM(parts, i, part)
        i += 1
    return parts


cdef object collate_dicts(SlotMemory memory, samples, dict functions, original):
    cdef object sample, key
    for sample in samples:
        if type(sample) is not dict:
            return original(samples, collate_fn_map=functions)
    return {
        key: collate_samples(
            memory, [(<dict>sample)[key] for sample in samples], functions, original
        )
        for key in samples[0]
    }

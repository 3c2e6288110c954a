# Memory behind a lease as torch tensors and ndarrays, and descriptions of existing ones.

import numpy
import torch

cdef enum:
    MAX_DIMS = 64   # of a tensor or array; torch and numpy allow as many

cdef uint64_t MAX_ELEMENTS = <uint64_t>1 << 62   # of a tensor; torch counts them in an int64

cdef object Tensor = torch.Tensor
cdef object ndarray = numpy.ndarray
cdef const DLPackExchangeAPI *dlpack = NULL
cdef bint known_type[32][256]   # DLPack code and bits of the tensors that are taken and made


cdef int load_exchange_api() except -1:
    """Find the table of functions that torch publishes for C, of the major version we know."""
    global dlpack
    cdef object capsule = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    cdef const DLPackExchangeAPIHeader *header
    if capsule is None:
        raise ImportError(
            f"torch {torch.__version__} has no DLPack exchange table: shmloader needs torch 2.11 "
            "or newer"
        )
    header = <const DLPackExchangeAPIHeader *>PyCapsule_GetPointer(capsule, "dlpack_exchange_api")
    while header != NULL and header.version.major != DLPACK_MAJOR_VERSION:
        header = header.prev_api
    if header == NULL:
        raise ImportError(
            f"torch {torch.__version__} speaks another major version of DLPack than "
            f"{DLPACK_MAJOR_VERSION}: this shmloader is too old for it"
        )
    dlpack = <const DLPackExchangeAPI *>header
    return 0


load_exchange_api()


cdef inline bint is_known_type(DLDataType dtype):
    return dtype.code < 32 and known_type[dtype.code][dtype.bits]


cdef inline char *tensor_start(const DLTensor *description):
    return <char *>description.data + description.byte_offset


cdef inline uint64_t count_elements(const DLTensor *description) noexcept:
    cdef uint64_t count = 1
    cdef int i
    for i in range(description.ndim):
        count *= <uint64_t>description.shape[i]
    return count


cdef inline bint is_contiguous(const DLTensor *description):
    cdef int64_t expected = 1
    cdef int i
    for i in range(description.ndim - 1, -1, -1):
        if description.shape[i] != 1 and description.strides[i] != expected:
            return False
        expected *= description.shape[i]
    return True


cdef object tensor_over(lease *owner, void *data, DLDataType dtype, int ndim,
                        const int64_t *shape, const int64_t *strides):
    """Make a torch.Tensor over memory behind a lease; its storage holds one alias."""
    cdef void *tensor = NULL
    cdef c_bool deleted = False
    cdef DLManagedTensorVersioned *managed = alias_new(owner, data, dtype, ndim, shape, strides)
    if managed == NULL:
        raise MemoryError("no memory for a tensor's description")
    alias_watch(managed, &deleted)
    try:
        dlpack.managed_tensor_to_py_object_no_sync(managed, &tensor)
    except BaseException:
        # torch has called the deleter already, if it failed late.
        if not deleted:
            managed.deleter(managed)
        raise
    alias_watch(managed, NULL)
    return take_reference(tensor)


cdef inline object take_reference(void *owned):
    # The table hands out a new reference; Cython's cast adds one of its own.
    cdef object result = <object>owned
    drop_reference(owned)
    return result


cdef object BYTE = torch.uint8
cdef object SIGNED_BYTE = torch.int8


cdef int plain_tensor(object tensor, DLTensor *description) except -1:
    """
    Describe an exact torch.Tensor that is nothing but strided CPU memory.

    Returns 1, or 0 if the raw bytes would not be the values (lazy conjugation or negation,
    another device or layout, a type that DLPack lacks) or autograd is involved.
    """
    if is_foreign(tensor):
        return 0
    if dlpack.dltensor_from_py_object_no_sync(<void *>tensor, description) != 0:
        PyErr_Clear()   # no strides: sparse and other layouts; or no such type in DLPack
        return 0
    if description.device.device_type != kDLCPU or description.dtype.lanes != 1:
        return 0
    if description.ndim > MAX_DIMS or not is_known_type(description.dtype):
        return 0
    # Integers of 1 to 7 bits come with the type of whole bytes.
    if description.dtype.bits == 8 and description.dtype.code in (kDLInt, kDLUInt):
        if tensor.dtype is not BYTE and tensor.dtype is not SIGNED_BYTE:
            return 0
    if needs_grad(tensor):
        return 0
    # Lazy negation comes from the imaginary part of a lazy conjugate, so it is of real type.
    if description.dtype.code == kDLFloat and is_negated(tensor):
        return 0
    if description.dtype.code == kDLComplex and (is_negated(tensor) or tensor.is_conj()):
        return 0
    return 1


cdef int64_t span_elements(int ndim, const int64_t *shape, const int64_t *strides) except -2:
    """How many elements lie from a tensor's first to its last, both counted; 0 if it is empty."""
    cdef int64_t last = 0
    cdef int i
    for i in range(ndim):
        if shape[i] == 0:
            return 0
        last += (shape[i] - 1) * strides[i]
    return last + 1


@cython.final
@cython.internal
cdef class Alias:
    """One alias of a lease as an object: the base of ndarrays and the buffer of pickled parts."""

    cdef lease *owner
    cdef char *start
    cdef uint64_t length

    def __dealloc__(self):
        if self.owner != NULL:
            lease_drop(self.owner)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.start, <Py_ssize_t>self.length, 0, flags)

    def storage(self):
        """The memory as a torch storage, which holds an alias of its own."""
        cdef int64_t length = self.length
        cdef int64_t stride = 1
        cdef DLDataType dtype
        dtype.code, dtype.bits, dtype.lanes = kDLUInt, 8, 1
        return tensor_over(self.owner, self.start, dtype, 1, &length, &stride).untyped_storage()


cdef Alias take_alias(lease *owner, char *start, uint64_t length):
    cdef Alias alias = Alias.__new__(Alias)
    lease_take(owner)
    alias.owner = owner
    alias.start = start
    alias.length = length
    return alias


cdef object array_over(Alias alias, char *data, cnp.dtype dtype, int ndim, cnp.npy_intp *shape,
                       bint fortran):
    """Make a writable contiguous ndarray over memory that alias keeps."""
    cdef object array
    Py_INCREF(dtype)
    array = new_array(
        <void *>ndarray, dtype, ndim, shape, NULL, data,
        cnp.NPY_ARRAY_WRITEABLE | (cnp.NPY_ARRAY_F_CONTIGUOUS if fortran else 0), NULL,
    )
    cnp.set_array_base(array, alias)
    return array


cdef dict learn_types():
    """Map torch dtypes to their DLPack (code, bits), asked from torch itself."""
    cdef DLTensor description
    cdef dict types = {}
    cdef object dtype, sample
    for dtype in (getattr(torch, name, None) for name in DTYPE_NAMES):
        if dtype is None:
            continue
        sample = torch.empty((1,), dtype=dtype)
        if dlpack.dltensor_from_py_object_no_sync(<void *>sample, &description) != 0:
            PyErr_Clear()
        elif description.dtype.code < 32 and description.dtype.bits % 8 == 0:
            types[dtype] = (description.dtype.code, description.dtype.bits)
            known_type[description.dtype.code][description.dtype.bits] = True
    return types


# Whole-byte types that torch makes without a warning. Any other dtype rides a pickle.
cdef tuple DTYPE_NAMES = (
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
)


cdef dict dtype_codes = learn_types()   # torch dtype -> its (code, bits) in DLPack

# Memory behind a lease as torch tensors and ndarrays, and descriptions of existing ones.

cimport cython
cimport numpy as cnp
from libc.stdint cimport int64_t, uint64_t

from shmloader.core.csrc cimport DLDataType, DLTensor, lease

cdef enum:
    MAX_DIMS = 64   # of a tensor or array; torch and numpy allow as many

cdef uint64_t MAX_ELEMENTS   # of a tensor
cdef object Tensor
cdef object ndarray
cdef bint known_type[32][256]   # DLPack code and bits of the tensors that are taken and made
cdef dict dtype_codes        # torch dtype -> its (code, bits) in DLPack


@cython.final
@cython.internal
cdef class Alias:
    cdef lease *owner
    cdef char *start
    cdef uint64_t length


cdef Alias take_alias(lease *owner, char *start, uint64_t length)

cdef object tensor_over(lease *owner, void *data, DLDataType dtype, int ndim,
                        const int64_t *shape, const int64_t *strides)
cdef object array_over(Alias alias, char *data, cnp.dtype dtype, int ndim, cnp.npy_intp *shape,
                       bint fortran)

cdef int plain_tensor(object tensor, DLTensor *description) except -1
cdef int64_t span_elements(int ndim, const int64_t *shape, const int64_t *strides) except -2


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

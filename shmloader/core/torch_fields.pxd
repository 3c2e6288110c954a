# If autograd needs a tensor, if its values are to be negated, which storage it has, and if it has a
# kind of memory that DLPack refuses.

from shmloader.core.capi cimport PyGetSetDef

cdef enum:
    FOREIGN_MAX = 8   # sets of keys: the kinds that batches have, twice over

cdef Py_ssize_t impl_at
cdef Py_ssize_t keys_at
cdef Py_ssize_t autograd_at
cdef Py_ssize_t storage_at
cdef size_t negative_key
cdef size_t foreign_keys[FOREIGN_MAX]
cdef int foreign_count
cdef PyGetSetDef *requires_grad_of


cdef inline size_t word_at(const void *start, Py_ssize_t at) noexcept:
    return (<const size_t *>(<const char *>start + at))[0]


cdef inline const void *impl_of(object tensor) noexcept:
    return <const void *>word_at(<const void *>tensor, impl_at)


cdef inline bint is_negated(object tensor) except -1:
    if keys_at != 0:
        return word_at(impl_of(tensor), keys_at) & negative_key != 0
    return tensor.is_neg()


cdef inline bint is_foreign(object tensor) noexcept:
    cdef size_t keys
    cdef int i
    if foreign_count == 0:
        return False
    keys = word_at(impl_of(tensor), keys_at)
    for i in range(foreign_count):
        if foreign_keys[i] == keys:
            return True
    return False


cdef inline size_t storage_of(object tensor) except? 0:
    """Returns the address of torch's object of a storage, which tells it from all others."""
    if storage_at != 0:
        return word_at(impl_of(tensor), storage_at)
    return tensor.untyped_storage()._cdata


cdef int note_foreign(object tensor) except -1


cdef inline bint needs_grad(object tensor) except -1:
    if autograd_at != 0 and word_at(impl_of(tensor), autograd_at) == 0:
        return False
    if requires_grad_of == NULL:
        return tensor.requires_grad
    return requires_grad_of.get(tensor, requires_grad_of.closure) is True

# Three fields of torch's own object of a tensor, read in place: the set of dispatch keys, which
# says what memory it has and if its values are to be negated, the pointer to what autograd keeps,
# and that to its storage.
#
# They are asked for every sample of every batch, and a call of torch's methods takes longer than
# the copy of a small sample: 95 to 150 ns a sample instead of 60. torch offers no faster way. So
# the places of the fields are found at import: those at which the words of many examples are what
# torch's methods say of them, if there is exactly one such place. If a place is not found, torch's
# methods are called. Delete this part when torch has an accessor in C.
#
# Checked with torch 2.13 and 2.15; with fewer examples, also with 2.11, 2.12 and 2.14.
# SHMLOADER_TORCH_FIELDS=0 turns it off.
#
# DLPack refuses a tensor of another kind of memory, such as a sparse or a meta one, with an error
# of C++ that takes 1 to 3 ms. So it is not asked about one that lacks a key that all examples have.

import functools
import operator
import os
from types import GetSetDescriptorType

import torch

cdef enum:
    SEARCHED_BYTES = 176   # the size of torch's object in 2.13, whose last word are the keys

# In bytes, 0 if not found: from the start of Python's object to the pointer to torch's, and from
# the start of that to the fields.
cdef Py_ssize_t impl_at = 0
cdef Py_ssize_t keys_at = 0
cdef Py_ssize_t autograd_at = 0
cdef Py_ssize_t storage_at = 0
cdef size_t negative_key = 0
cdef size_t common_keys = 0   # of all examples: they are dense, and of the CPU

# The function behind torch's attribute, which every view is asked for: four times as fast as a call
# through Python's lookup. NULL: look it up.
cdef PyGetSetDef *requires_grad_of = NULL

if type(torch.Tensor.requires_grad) is GetSetDescriptorType:
    requires_grad_of = (<PyGetSetDescrObject *>torch.Tensor.requires_grad).d_getset


cdef inline size_t word_at(const void *start, Py_ssize_t at) noexcept:
    return (<const size_t *>(<const char *>start + at))[0]


cdef inline const void *impl_of(object tensor) noexcept:
    return <const void *>word_at(<const void *>tensor, impl_at)


cdef inline bint is_negated(object tensor) except -1:
    if keys_at != 0:
        return word_at(impl_of(tensor), keys_at) & negative_key != 0
    return tensor.is_neg()


cpdef inline bint is_foreign(object tensor) noexcept:
    """Returns True if a tensor's memory is surely not the CPU's, or not dense."""
    return keys_at != 0 and word_at(impl_of(tensor), keys_at) & common_keys != common_keys


cdef inline size_t storage_of(object tensor) except? 0:
    """Returns the address of torch's object of a storage, which tells it from all others."""
    if storage_at != 0:
        return word_at(impl_of(tensor), storage_at)
    return tensor.untyped_storage()._cdata


cdef inline bint needs_grad(object tensor) except -1:
    if autograd_at != 0 and word_at(impl_of(tensor), autograd_at) == 0:
        return False
    if requires_grad_of == NULL:
        return tensor.requires_grad
    return requires_grad_of.get(tensor, requires_grad_of.closure) is True


cdef set places_of(const void *start, Py_ssize_t begin, Py_ssize_t end, size_t word):
    """The place of a word, as distances in bytes."""
    return {at for at in range(begin, end, sizeof(size_t)) if word_at(start, at) == word}


cdef set places_in(object tensor, size_t word):
    """The place of a word in torch's object of a tensor; the first word is no field."""
    return places_of(impl_of(tensor), sizeof(size_t), SEARCHED_BYTES, word)


cdef Py_ssize_t common_place(list places) except -1:
    """The one distance that is in every set; 0 if there is none, or more than one."""
    cdef set common = set.intersection(*places)
    return common.pop() if len(common) == 1 else 0


cdef tuple plain_and_negated():
    """Two tensors that differ in the negative key alone."""
    cdef object wave = torch.ones(3, 4, dtype=torch.complex64, device="cpu")
    return wave.imag, wave.conj().imag


cdef list examples():
    """Tensors of every kind that a dataset may return; no random numbers are drawn for them."""
    cdef list found
    with torch.inference_mode(False), torch.enable_grad():
        found = [*plain_and_negated(), *complex_examples(), *autograd_examples()]
        found += [torch.zeros(shape, device="cpu") for shape in ((), (1,), (2, 0), (2, 3, 4))]
        found += [torch.ones(5, dtype=kind, device="cpu") for kind in (torch.bool, torch.uint8)]
        found += [torch.ones(5, 2, device="cpu").to(kind) for kind in (torch.int64, torch.bfloat16)]
    with torch.inference_mode():
        found += [torch.zeros(7, device="cpu"), torch.zeros(7, 2, device="cpu")[2:]]
    return found


cdef list complex_examples():
    cdef object wave = torch.ones(3, 4, dtype=torch.complex64, device="cpu")
    cdef object leaf = torch.ones(2, 3, 2, dtype=torch.complex128, device="cpu", requires_grad=True)
    return [wave, wave.conj(), wave.t(), wave.conj().imag[1:, ::2],
            leaf, leaf.conj(), leaf.detach(), leaf * 2]


cdef list autograd_examples():
    cdef object leaf = torch.ones(5, device="cpu", requires_grad=True)
    cdef object matrix = torch.ones(2, 3, device="cpu").requires_grad_()
    cdef object parameter = torch.nn.Parameter(torch.ones(2, 3, 4, device="cpu"))
    return [leaf, leaf * 2, leaf[1:], leaf.detach(), (leaf * 2).detach(), leaf.double(),
            leaf.detach().double(), matrix, matrix.t(), matrix.detach(), parameter, parameter * 2,
            parameter.detach()]


cdef Py_ssize_t find_impl(list tensors) except -1:
    """Find the pointer to torch's object in Python's, behind what every object has."""
    cdef object tensor
    return common_place([
        places_of(<const void *>tensor, sizeof(PyObject), torch.Tensor.__basicsize__,
                  <size_t>getattr(tensor, "_cdata", 1))
        for tensor in tensors
    ])


cdef bint is_unknown_to_autograd(object tensor) except -1:
    # A view has something of autograd's even if it needs no gradient.
    return not tensor.requires_grad and not tensor._is_view()


cdef Py_ssize_t find_autograd(list tensors) except -1:
    """Find a pointer that all tensors have that need a gradient, and none that is plain."""
    cdef object tensor
    cdef list places = []
    for tensor in tensors:
        empty = places_in(tensor, 0)
        if tensor.requires_grad:
            places.append(set(range(sizeof(size_t), SEARCHED_BYTES, sizeof(size_t))) - empty)
        elif is_unknown_to_autograd(tensor):
            places.append(empty)
    return common_place(places)


cdef Py_ssize_t find_keys(list tensors, list keys) except -1:
    """Find the set of dispatch keys, given for each tensor."""
    return common_place([places_in(tensor, word) for tensor, word in zip(tensors, keys)])


cdef bint tells_negated(list tensors, list keys, size_t key) except -1:
    """Returns True if that key is in the set of exactly the tensors that are negated."""
    return key != 0 and all([
        (<size_t>word & key != 0) is tensor.is_neg() for tensor, word in zip(tensors, keys)
    ])


def find_fields():
    """Find the places of the fields; those stay 0 of which torch does not say enough."""
    global impl_at, keys_at, autograd_at, storage_at, negative_key, common_keys
    cdef object dispatch_keys = getattr(torch._C, "_dispatch_keys", None)
    cdef list tensors = examples()
    cdef list keys
    forget_fields()
    impl_at = find_impl(tensors)
    if impl_at == 0:
        return
    autograd_at = find_autograd(tensors)
    storage_at = common_place([
        places_in(tensor, tensor.untyped_storage()._cdata) for tensor in tensors
    ])
    if dispatch_keys is None:
        return
    keys = [dispatch_keys(tensor).raw_repr() for tensor in tensors]
    negative_key = <size_t>keys[0] ^ <size_t>keys[1]
    if tells_negated(tensors, keys, negative_key):
        common_keys = functools.reduce(operator.and_, keys)
        keys_at = find_keys(tensors, keys)


def forget_fields():
    """Ask torch about each tensor from here on, as if the fields had not been found."""
    global impl_at, keys_at, autograd_at, storage_at
    impl_at = keys_at = autograd_at = storage_at = 0


def field_places():
    """
    Name the places at which the fields are read.

    Returns:
        Distances in bytes from the start of torch's object: of the set of dispatch keys, and of
        the pointers to what autograd keeps and to the storage; 0 if torch is asked instead.
    """
    return keys_at, autograd_at, storage_at


cdef bint is_wanted() except -1:
    """Returns True unless the environment turns the reading in place off."""
    cdef str value = os.environ.get("SHMLOADER_TORCH_FIELDS") or "1"
    if value not in ("0", "1"):
        raise ValueError(f"SHMLOADER_TORCH_FIELDS={value}: choose 0 or 1")
    return value == "1"


if is_wanted():
    try:
        find_fields()
    except Exception:   # what is private in torch may be gone, or changed, in the next version
        forget_fields()

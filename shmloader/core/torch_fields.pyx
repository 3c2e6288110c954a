# What torch notes of a tensor in its own object: whether its values are to be negated, and whether
# autograd knows it. Both are asked for every sample of every batch, and in Python's way that takes
# longer than copying a small sample. So the places of these notes are found once, by what torch
# says of some tensors, and have to be right for all of these. Where one is not found, torch is
# asked.

from types import GetSetDescriptorType, MethodDescriptorType

import torch

from cpython.object cimport PyObject

from shmloader.core.capi cimport (
    METH_NOARGS, PyCFunction, PyGetSetDef, PyGetSetDescrObject, PyMethodDef, PyMethodDescrObject,
)

cdef enum:
    NOTES_BYTES = 184   # how far into torch's object is looked; it is longer

# In bytes, 0 where it was not found: from the start of Python's object to the pointer to torch's,
# and from the start of that to the set of dispatch keys, and to the pointer to autograd's notes.
cdef Py_ssize_t tensor_at = 0
cdef Py_ssize_t keys_at = 0
cdef Py_ssize_t autograd_at = 0
cdef size_t negative_key = 0

# The functions behind torch's method and attribute, four times as fast as a call through Python's
# lookup. NULL: look it up.
cdef PyCFunction is_neg_of = NULL
cdef PyGetSetDef *requires_grad_of = NULL


cdef int find_functions() except -1:
    global is_neg_of, requires_grad_of
    cdef object method = torch.Tensor.is_neg
    cdef object attribute = torch.Tensor.requires_grad
    cdef PyMethodDef *definition
    if type(method) is MethodDescriptorType:
        definition = (<PyMethodDescrObject *>method).d_method
        if definition.ml_flags == METH_NOARGS:
            is_neg_of = definition.ml_meth
    if type(attribute) is GetSetDescriptorType:
        requires_grad_of = (<PyGetSetDescrObject *>attribute).d_getset
    return 0


cdef list places_of(size_t start, Py_ssize_t begin, Py_ssize_t end, size_t word):
    """Where a word lies, as distances in bytes."""
    return [at for at in range(begin, end, sizeof(size_t)) if word_at(<void *>start, at) == word]


cdef Py_ssize_t common_place(places) except -1:
    """The one distance that is in every list; 0 if there is none, or more than one."""
    cdef set common = set.intersection(*map(set, places))
    return common.pop() if len(common) == 1 else 0


cdef list examples():
    """Tensors of which torch notes this or that; no random numbers are drawn for them."""
    cdef object wave, leaf
    cdef list found
    with torch.inference_mode(False), torch.enable_grad():
        wave = torch.ones(3, 4, dtype=torch.complex64, device="cpu")
        leaf = torch.ones(5, device="cpu", requires_grad=True)
        found = [wave, wave.conj(), wave.imag, wave.conj().imag, wave.conj().imag[1:, ::2]]
        found += [leaf, leaf * 2, leaf[1:], leaf.detach(), (leaf * 2).detach(), leaf.double()]
        found += [torch.zeros(shape, device="cpu") for shape in ((), (1,), (2, 0), (2, 3, 4))]
        found += [leaf.detach().to(kind) for kind in (torch.uint8, torch.int64, torch.bfloat16)]
    with torch.inference_mode():
        found += [torch.zeros(7, device="cpu"), torch.zeros(7, device="cpu")[2:]]
    return found


def find_notes():
    """Find the places; each stays 0 where torch does not say enough, or says something else."""
    global tensor_at, keys_at, autograd_at, negative_key
    cdef object say_keys = getattr(torch._C, "_dispatch_keys", None)
    cdef list tensors = examples()
    cdef list keys
    cdef size_t negative = 0
    tensor_at = common_place([
        places_of(<size_t><void *>each, sizeof(PyObject), torch.Tensor.__basicsize__,
                  getattr(each, "_cdata", 1))
        for each in tensors
    ])
    if tensor_at == 0:
        return
    # No pointer: autograd does not require a gradient. Else torch is asked.
    autograd_at = common_place([
        [at for at in range(sizeof(size_t), NOTES_BYTES, sizeof(size_t))
         if word_at(notes_of(each), at) != 0 or not each.requires_grad]
        for each in tensors
    ] + [places_of(<size_t>notes_of(each), sizeof(size_t), NOTES_BYTES, 0)
         for each in tensors if not (each.requires_grad or each._is_view())][:3])
    if say_keys is None:
        return
    keys = [<size_t>say_keys(each).raw_repr() for each in tensors]
    keys_at = common_place([
        places_of(<size_t>notes_of(each), sizeof(size_t), NOTES_BYTES, word)
        for each, word in zip(tensors, keys)
    ])
    negative = keys[2] ^ keys[3]   # of a plain view and the same one negated
    for each, word in zip(tensors, keys):
        if (word & negative != 0) is not each.is_neg():
            keys_at = 0
    negative_key = negative


def forget_notes():
    """Ask torch about each tensor from here on, as where its notes were not found."""
    global tensor_at, keys_at, autograd_at
    tensor_at = keys_at = autograd_at = 0


def note_places():
    """Where in torch's own object the keys and autograd's notes were found, in bytes; 0: not."""
    return keys_at, autograd_at


find_functions()
try:
    find_notes()
except Exception:   # what is private in torch may be gone, or another thing, in the next version
    forget_notes()

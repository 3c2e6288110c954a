"""
The pickle for what the layout cannot describe: one for the whole batch, its large parts beside it.

It is a plain pickle: the C pickler calls nothing of ours but for classes that may hold tensors or
arrays, so other objects cost what they cost in any pickle, and share what they share there. Leaves,
and storages of the CPU, are named by their numbers in the layout; other buffers lie beside the
pickle. Memory that is not the CPU's keeps torch's own reducers.
"""

import copyreg
import functools
import io
import math
import operator
import pickle
import sys
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy
import torch

from shmloader.core.kinds import reducer_of

_reduce_own = operator.methodcaller("__reduce_ex__", 5)


class Reducers(dict[type, Callable[[Any], Any]]):
    """
    What takes objects apart, by their class: the dispatch table of one pickle.

    The encoder adds what takes its leaves apart.
    """

    def __init__(self, values_alone: bool = False) -> None:
        """
        Begin a pickle.

        Args:
            values_alone: Its readers may come when this process is gone.
        """
        super().__init__(copyreg.dispatch_table)
        # Not a method: a cycle would keep all that the encoder has.
        self._tensors = functools.partial(reduce_tensor, values_alone=values_alone)
        if not values_alone:  # multiprocessing's reducers send descriptors and handles
            forking: Any = ForkingPickler  # its table of reducers is in no stub
            self.update(forking._extra_reducers)
        self[torch.Tensor] = self[torch.nn.Parameter] = self._tensors
        self[torch.storage.TypedStorage] = _reduce_typed_storage

    def __missing__(self, kind: type) -> Callable[[Any], Any]:
        """Find what takes objects of a class apart, when the first of them is met."""
        if issubclass(kind, type):
            raise KeyError(kind)  # classes are found by their names
        if issubclass(kind, torch.Tensor):
            found: Callable[[Any], Any] = self._tensors
        else:
            reducer = reducer_of(kind)
            found = _reduce_own if reducer is None else _or_own(reducer)
        self[kind] = found
        return found


def _or_own(reducer: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: reducer(value) or _reduce_own(value)


def dumps(value: Any, reducers: Reducers) -> tuple[bytes, list[Any]]:
    """Pickle an object; returns the pickle, and the buffers that lie beside it."""
    chunks: list[bytes] = []
    buffers: list[Any] = []
    pickler = pickle.Pickler(
        _Stream(chunks), 5, buffer_callback=lambda buffer: buffers.append(buffer.raw())
    )
    pickler.dispatch_table = reducers
    pickler.dump(value)
    return b"".join(chunks), buffers


class _Stream:
    """A file to which a pickler writes."""

    def __init__(self, chunks: list[bytes]) -> None:
        self.write = chunks.append


def loads(pickled: bytes, leaf_of: Callable[[int], Any], buffers: list[Any]) -> Any:
    """
    Build an object again from its pickle.

    Args:
        leaf_of: Finds the leaf that has a number in the layout.
        buffers: What lay beside the pickle.
    """
    unpickler = Unpickler(io.BytesIO(pickled), buffers=buffers)
    unpickler.leaf_of = leaf_of
    try:
        return unpickler.load()
    finally:
        # torch keeps every sparse tensor that it rebuilds until they are asked to be valid.
        torch._utils._validate_loaded_sparse_tensors()


class Unpickler(pickle.Unpickler):
    """Builds the objects of a batch again."""

    leaf_of: Callable[[int], Any]

    def find_class(self, module: str, name: str) -> Any:
        """Find a global; that which rebuilds tensors of newer dtypes takes no bare storage."""
        if (module, name) == (__name__, "leaf"):
            return self.leaf_of
        if (module, name) == ("torch._utils", "_rebuild_tensor_v3"):
            return _rebuild_tensor_v3
        return super().find_class(module, name)

    @staticmethod
    def find_global(module: str, name: str) -> Any:
        """Find what a module calls by a qualified name now, as a pickle would."""
        if module not in sys.modules:
            __import__(module)
        value = sys.modules[module]
        for step in name.split("."):
            value = getattr(value, step)
        return value


def leaf(number: int) -> Any:
    """Stand in a pickle for the leaf of that number; see `Unpickler.find_class`."""
    raise pickle.UnpicklingError(f"value {number} is stored in a batch, not in a pickle")


def typed(array: Any, dtype: Any) -> numpy.ndarray[Any, Any]:
    """Give bytes the type that no text describes, which other objects of the pickle may share."""
    made: numpy.ndarray[Any, Any] = array.view(dtype)
    return made


def reduce_tensor(tensor: torch.Tensor, values_alone: bool = False) -> Any:
    """Reduce a CPU tensor to its storage, as torch.save does, not to a descriptor."""
    if tensor.device.type in ("cpu", "meta"):
        _refuse_non_leaf(tensor)
    elif values_alone:
        raise TypeError(f"a tensor on {tensor.device}")
    else:
        return _reduce_as_forking(tensor)
    parts = _reduce_own(tensor)
    if type(tensor) in _TORCHS_OWN:
        parts = _without_attributes(*parts)
    return parts if _is_raw(tensor) else _over_plain(parts)


def reduce_storage(storage: torch.UntypedStorage, values_alone: bool = False) -> Any:
    """Reduce a storage that is no memory of the CPU's."""
    return _reduce_own(storage) if values_alone else _reduce_as_forking(storage)


def _reduce_as_forking(value: Any) -> Any:
    forking: Any = ForkingPickler  # its table of reducers is in no stub
    return forking._extra_reducers.get(type(value), _reduce_own)(value)


def _reduce_typed_storage(value: Any) -> Any:
    return _typed_storage, (value._untyped_storage, value.dtype)


def _typed_storage(untyped: torch.UntypedStorage, dtype: torch.dtype) -> Any:
    return torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)


def _rebuild_tensor_v3(storage: torch.UntypedStorage, *arguments: Any) -> Any:
    # torch pickles the bare storage, and expects it as torch.load would have wrapped it.
    typed_storage = _typed_storage(storage, torch.uint8)
    return torch._utils._rebuild_tensor_v3(typed_storage, *arguments)


# Of these torch's queues send no attributes, which may be anything.
_TORCHS_OWN = (torch.Tensor, torch.nn.Parameter)


def _without_attributes(rebuild: Any, arguments: Any, *more: Any) -> Any:
    if rebuild is torch._tensor._rebuild_from_type_v2:
        return arguments[0], arguments[2], *more
    if rebuild is torch._utils._rebuild_parameter_with_state:
        return torch._utils._rebuild_parameter, arguments[:3], *more
    return rebuild, arguments, *more


# What rebuilds tensors of torch from storage, offset, size, stride and more.
_REBUILDERS = {
    torch._utils._rebuild_tensor_v2,
    torch._utils._rebuild_tensor_v3,
    torch._utils._rebuild_qtensor,
}
# By the bytes of an element, to make others of.
_RAW = {
    tensor.itemsize: tensor
    for kind in (torch.uint8, torch.int16, torch.int32, torch.int64, torch.complex128)
    for tensor in [torch.empty(0, dtype=kind, device="cpu")]
}
_RAW_TYPES = {tensor.dtype for tensor in _RAW.values()}
_PACKED_TYPES = {torch.quint4x2, torch.quint2x4}  # several elements a byte


def _is_raw(tensor: torch.Tensor) -> bool:
    """Returns True for such a tensor as `_plain_over` makes: another one would be no better."""
    return (
        type(tensor) is torch.Tensor
        and tensor.dtype in _RAW_TYPES
        and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())
    )


def _over_plain(parts: Any) -> Any:
    """Have a plain tensor stand for a tensor's storage, of which only what it shows is sent."""
    if type(parts) is not tuple or type(parts[1]) is not tuple:
        return parts
    rebuild, arguments, *more = parts
    if rebuild is torch._tensor._rebuild_from_type_v2:
        inner, kind, inside, state = arguments
        inner, inside = _over_plain((inner, inside))
        return rebuild, (inner, kind, inside, state), *more
    if rebuild not in _REBUILDERS:
        return parts
    plain = _plain_over(*arguments)
    if plain is None:
        return parts
    dtype = getattr(arguments[0], "dtype", None)  # a bare storage has none
    return _rebuild_over, (rebuild, dtype, plain, *arguments[4:]), *more


def _plain_over(storage: Any, offset: int, size: Any, stride: Any, *more: Any) -> Any:
    """Make a plain tensor over what a tensor shows of its storage; None: that is most of it."""
    is_typed = type(storage) is torch.storage.TypedStorage
    dtype, untyped = (storage.dtype, storage._untyped_storage) if is_typed else (more[2], storage)
    raw = None if dtype in _PACKED_TYPES else _RAW.get(dtype.itemsize)
    if raw is None or untyped.nbytes() <= 2 * math.prod(size) * raw.itemsize:
        return None
    last = offset + sum((count - 1) * step for count, step in zip(size, stride, strict=True))
    if untyped.device.type != "cpu" or (last + 1) * raw.itemsize > untyped.nbytes():
        return None  # it was resized under the tensor
    return raw.new_empty(0).set_(untyped, offset, size, stride)


def _rebuild_over(rebuild: Any, dtype: Any, plain: torch.Tensor, *more: Any) -> Any:
    storage: Any = plain.untyped_storage()
    if dtype is not None:
        storage = _typed_storage(storage, dtype)
    return rebuild(storage, plain.storage_offset(), plain.shape, plain.stride(), *more)


def _refuse_non_leaf(tensor: torch.Tensor) -> None:
    # Of a subclass torch's queues send them, as pickle does: it is a leaf then.
    if type(tensor) not in _TORCHS_OWN:
        return
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            "a non-leaf tensor that requires grad cannot leave its process, because autograd does "
            "not reach across: call detach() on it"
        )

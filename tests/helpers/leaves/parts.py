"""What a leaf consists of, piece by piece: what each piece is, where it lies, and its bits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy
import PIL.Image
import torch

from shmloader.core import array_of_arrow, is_behind_lease
from tests.helpers.leaves.leaf import module


class Part(NamedTuple):
    """
    A piece of a leaf.

    Attributes:
        what: Type, shape, and whatever else must be equal.
        address: Where its memory begins; 0: it is no memory of numbers, but a Python object.
        bits: Its bytes in order.
    """

    what: str
    address: int = 0
    bits: bytes = b""


def are_same(one: Any, other: Any) -> bool:
    """Returns True if two leaves are equal in every type and bit."""
    return [(part.what, part.bits) for part in parts_of(one)] == [
        (part.what, part.bits) for part in parts_of(other)
    ]


def where(leaf: Any) -> str:
    """Tell what of a leaf's memory lies behind leases, thus in slots: "all", "some" or "none"."""
    behind = {is_behind_lease(part.address) for part in parts_of(leaf) if part.address}
    return {frozenset([True]): "all", frozenset([True, False]): "some"}.get(
        frozenset(behind), "none"
    )


def parts_of(value: Any) -> Iterator[Part]:
    """Yield the pieces of a leaf, always in the same order."""
    yield from _parts(value, {})


def _parts(value: Any, seen: dict[int, Any]) -> Iterator[Part]:
    kind = type(value)
    if value is None or isinstance(value, int | float | complex | str | bytes | type):
        yield Part(f"{kind.__name__} {value!r}")
        if not isinstance(value, type) and getattr(value, "__dict__", None):
            yield from _parts(vars(value), seen)
        return
    if id(value) in seen:
        yield Part("met before")
        return
    seen[id(value)] = value  # kept, so that no other object gets its address
    yield Part(f"{kind.__module__}.{kind.__qualname__}")
    for inner in _inside(value):
        yield from [inner] if isinstance(inner, Part) else _parts(inner, seen)


def _inside(value: Any) -> Iterator[Any]:
    """Yield the pieces of a value, and the values of which it consists."""
    for base in type(value).__mro__:
        found = _INSIDE.get(f"{base.__module__.partition('.')[0]}.{base.__name__}")
        if found is not None:
            yield from found(value)
            if base.__module__ in ("builtins", "collections"):
                yield from getattr(value, "__dict__", {}).items()
            return
    if dataclasses.is_dataclass(value):
        yield from (getattr(value, field.name) for field in dataclasses.fields(value))
        return
    for name in getattr(value, "__slots__", ()):
        if not name.startswith("__"):
            yield from (name, getattr(value, name))
    yield from getattr(value, "__dict__", {}).items()
    if not hasattr(value, "__dict__") and type(value).__repr__ is not object.__repr__:
        yield repr(value)


def _of_tensor(tensor: torch.Tensor) -> Iterator[Any]:
    yield f"{tensor.dtype} {tensor.layout} {tensor.requires_grad} {tensor.device}"
    if type(tensor) is not torch.Tensor and not tensor.is_nested:
        yield {
            name: each for name, each in tensor.__dict__.items() if not name.startswith("_cached")
        }
        tensor = tensor.as_subclass(torch.Tensor)
    tensor = tensor if tensor.is_nested else tensor.detach()
    if tensor.is_meta:
        yield f"{tensor.shape} {tensor.stride()}"
    elif tensor.is_nested and tensor.layout == torch.jagged:
        yield from (tensor.values(), tensor.offsets())
    elif tensor.is_nested:
        yield from (tensor._nested_tensor_size(), tensor.values())
    elif tensor.layout == torch.sparse_coo:
        yield f"{tensor.shape} {tensor.is_coalesced()}"
        yield from (tensor._indices(), tensor._values())
    elif tensor.layout in _COMPRESSED:
        yield from (str(tensor.shape), tensor.values())
        yield from (get(tensor) for get in _COMPRESSED[tensor.layout])
    else:
        yield from _of_strided(tensor)


def _of_strided(tensor: torch.Tensor) -> Iterator[Any]:
    strides = [each for each, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
    yield f"{tensor.shape} {tensor.is_conj()} {tensor.is_neg()} {strides * bool(tensor.numel())}"
    if tensor.is_quantized:
        yield f"{tensor.q_scale()} {tensor.q_zero_point()}"
        raw = tensor.int_repr()
    else:
        raw = tensor.resolve_conj().resolve_neg().contiguous()
        raw = raw.as_strided((raw.numel(),), (1,)).view(torch.uint8)
    yield Part("memory", tensor.data_ptr(), raw.numpy().tobytes())


_COMPRESSED: dict[torch.layout, tuple[Callable[[Any], Any], ...]] = {
    torch.sparse_csr: (torch.Tensor.crow_indices, torch.Tensor.col_indices),
    torch.sparse_bsr: (torch.Tensor.crow_indices, torch.Tensor.col_indices),
    torch.sparse_csc: (torch.Tensor.ccol_indices, torch.Tensor.row_indices),
    torch.sparse_bsc: (torch.Tensor.ccol_indices, torch.Tensor.row_indices),
}


def _of_storage(storage: torch.UntypedStorage) -> Iterator[Any]:
    yield Part(
        f"{storage.nbytes()}",
        storage.data_ptr(),
        torch.tensor([], dtype=torch.uint8).set_(storage).numpy().tobytes(),
    )


def _of_array(array: numpy.ndarray) -> Iterator[Any]:
    if isinstance(array, numpy.ma.MaskedArray):
        yield from (array.data, numpy.ma.getmaskarray(array), repr(array.fill_value))
        return
    strides = [each for each, length in zip(array.strides, array.shape, strict=True) if length > 1]
    yield f"{array.dtype!r} {array.shape} {strides if array.size else None}"
    yield {} if type(array) is numpy.ndarray else _attributes(array)
    if array.dtype.hasobject or array.dtype.char in "TgG":  # of "g", not all bytes are the number
        yield from (Part("objects", array.ctypes.data), array.tolist())
    else:
        yield Part("memory", array.ctypes.data, array.tobytes())


def _attributes(array: Any) -> dict[str, Any]:
    # What says which file an array was mapped from, no pickle keeps.
    of_file = {} if not isinstance(array, numpy.memmap) else {"filename", "offset", "mode"}
    found = getattr(array, "__dict__", {})
    return {name: found[name] for name in found if name[0] != "_" and name not in of_file}


def _of_image(image: PIL.Image.Image) -> Iterator[Any]:
    yield from (image.mode, image.size, image.info, image.getpalette(), image.format)
    try:
        address = array_of_arrow(image).ctypes.data
    except ValueError:
        address = 1  # several blocks of Pillow's own
    yield Part("pixels", address, image.tobytes())


def _of_list(values: Any) -> Iterator[Any]:
    yield f"{len(values)}"
    yield from values


def _of_function(function: Any) -> Iterator[Any]:
    yield f"{function.__module__}.{function.__qualname__}"


def _of_partial(function: Any) -> Iterator[Any]:
    yield from (function.func, function.args, function.keywords)


def _of_mapping(values: Mapping[Any, Any]) -> Iterator[Any]:
    for key, item in values.items():
        yield from (key, item)


def _of_bytearray(value: bytearray) -> Iterator[Any]:
    yield Part("bytes", numpy.frombuffer(value, numpy.uint8).ctypes.data, bytes(value))


def _of_tensorclass(value: Any) -> Iterator[Any]:
    yield from (value._tensordict, value._non_tensordict)


def _of_tensordict(value: Any) -> Iterator[Any]:
    yield str(value.batch_size)
    yield from _of_mapping(dict(value.items()))


def _of_frame(frame: Any) -> Iterator[Any]:
    yield from (list(frame.columns), frame.index)
    yield from (frame[name].array for name in frame.columns)


def _of_series(series: Any) -> Iterator[Any]:
    yield from (series.name, series.index, series.array)


def _of_index(index: Any) -> Iterator[Any]:
    yield f"{index!r}"
    if type(index).__name__ != "RangeIndex":
        yield index.array


def _of_extension(array: Any) -> Iterator[Any]:
    yield str(array.dtype)
    names = ("_pa_array", "_ndarray", "_data", "_mask", "categories")
    yield from (getattr(array, name) for name in names if hasattr(array, name))


def _of_arrow_array(array: Any) -> Iterator[Any]:
    yield f"{array.type} {len(array)} {array.offset}"
    for buffer in array.buffers():
        yield None if buffer is None else Part("buffer", buffer.address, buffer.to_pybytes())
    if hasattr(array, "dictionary"):
        yield array.dictionary


def _of_arrow_table(table: Any) -> Iterator[Any]:
    yield str(table.schema)
    yield from table.columns


def _of_awkward(array: Any) -> Iterator[Any]:
    form, length, buffers = module("awkward").to_buffers(array)
    yield f"{form} {length}"
    yield from buffers.values()


# By the package and the name of a class, so that nothing is imported for it.
_INSIDE: dict[str, Callable[[Any], Iterator[Any]]] = {
    "tensordict.TensorDictBase": _of_tensordict,
    "tensordict.TensorClass": _of_tensorclass,
    "torch.Tensor": _of_tensor,
    "torch.UntypedStorage": _of_storage,
    "numpy.ndarray": _of_array,
    "numpy.generic": lambda scalar: iter([f"{scalar.dtype!r} {scalar!r}"]),
    "PIL.Image": _of_image,
    "builtins.list": _of_list,
    "builtins.tuple": _of_list,
    "builtins.dict": _of_mapping,
    "builtins.bytearray": _of_bytearray,
    "builtins.function": _of_function,
    "builtins.builtin_function_or_method": _of_function,
    "functools.partial": _of_partial,
    "weakref.ReferenceType": lambda reference: iter([reference()]),
    "collections.deque": _of_list,
    "pandas.DataFrame": _of_frame,
    "pandas.Series": _of_series,
    "pandas.Index": _of_index,
    "pandas.ExtensionArray": _of_extension,
    "pyarrow.Array": _of_arrow_array,
    "pyarrow.ChunkedArray": lambda array: iter(array.chunks),
    "pyarrow.RecordBatch": _of_arrow_table,
    "pyarrow.Table": _of_arrow_table,
    "awkward.Array": _of_awkward,
}  # fmt: skip

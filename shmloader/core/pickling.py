"""
The pickle for what the layout cannot describe: any picklable object, its large parts beside it.

Tensors of every kind reduce to storages, ndarrays to buffers; both lie beside the pickle, so that
they go through the slot like any other leaf and keep their aliases of each other. Memory that is
not the CPU's keeps torch's own reducers.
"""

import copyreg
import io
import pickle
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

# Pickles start with the number of storages: buffers are taken by turn, storages by number.
_COUNT_BYTES = 4


class _Pickler(pickle.Pickler):
    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, protocol=5, buffer_callback=self._keep_buffer)
        forking: Any = ForkingPickler  # its table of reducers is in no stub
        self.dispatch_table: Any = ChainMap(forking._extra_reducers, copyreg.dispatch_table)
        self.buffers: list[Any] = []
        self.storages: list[Any] = []
        self._numbers: dict[int, int] = {}

    def _keep_buffer(self, buffer: pickle.PickleBuffer) -> None:
        self.buffers.append(buffer.raw())

    def persistent_id(self, value: Any) -> int | None:
        """Name a CPU storage by its number; each lies outside once."""
        if type(value) is not torch.UntypedStorage or value.device.type != "cpu":
            return None
        number = self._numbers.setdefault(value._cdata, len(self.storages))
        if number == len(self.storages):
            self.storages.append(_bytes_of(value))
        return number

    def reducer_override(self, value: Any) -> Any:
        """Reduce CPU tensors to storages, as torch.save does, not to descriptors."""
        if isinstance(value, torch.Tensor) and value.device.type in ("cpu", "meta"):
            _refuse_non_leaf(value)
            return value.__reduce_ex__(5)
        if type(value) is torch.storage.TypedStorage:
            return _typed_storage, (value._untyped_storage, value.dtype)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, storages: list[Any], buffers: list[Any]) -> None:
        super().__init__(stream, buffers=buffers)
        self._storages = storages

    def persistent_load(self, number: int) -> Any:
        """Find the storage of that number."""
        return self._storages[number].storage()

    def find_class(self, module: str, name: str) -> Any:
        """Find a global; that which rebuilds tensors of newer dtypes takes no bare storage."""
        if (module, name) == ("torch._utils", "_rebuild_tensor_v3"):
            return _rebuild_tensor_v3
        return super().find_class(module, name)


def _bytes_of(storage: torch.UntypedStorage) -> Any:
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy()


def _typed_storage(untyped: torch.UntypedStorage, dtype: torch.dtype) -> Any:
    return torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)


def _rebuild_tensor_v3(storage: torch.UntypedStorage, *arguments: Any) -> Any:
    # torch pickles the bare storage, and expects it as torch.load would have wrapped it.
    typed = _typed_storage(storage, torch.uint8)
    return torch._utils._rebuild_tensor_v3(typed, *arguments)


def _refuse_non_leaf(tensor: torch.Tensor) -> None:
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            "a non-leaf tensor that requires grad cannot leave its process, because autograd does "
            "not reach across: call detach() on it"
        )


def dumps(value: Any) -> tuple[bytes, list[Any]]:
    """
    Pickle an object.

    Returns:
        The pickle, and a list of the contiguous buffers that lie beside it.

    Raises:
        Exception: The error of the object's own reduction.
    """
    stream = io.BytesIO()
    pickler = _Pickler(stream)
    pickler.dump(value)
    count = len(pickler.storages).to_bytes(_COUNT_BYTES, "little")
    return count + stream.getvalue(), pickler.storages + pickler.buffers


def loads(pickled: bytes, parts: list[Any]) -> Any:
    """Build an object again from its pickle and the parts that lay beside it."""
    count = int.from_bytes(pickled[:_COUNT_BYTES], "little")
    stream = io.BytesIO(pickled[_COUNT_BYTES:])
    try:
        return _Unpickler(stream, parts[:count], parts[count:]).load()
    finally:
        # torch keeps every sparse tensor that it rebuilds until they are asked to be valid.
        torch._utils._validate_loaded_sparse_tensors()


def find_unsendable(batch: Any, path: str = "batch") -> tuple[str, Any] | None:
    """
    Find the first leaf of a batch that cannot be pickled.

    Returns:
        (path, leaf), the path written as Python would reach it, or None.
    """
    for step, child in _children(batch):
        found = find_unsendable(child, path + step)
        if found:
            return found
    return None if _is_sendable(batch) else (path, batch)


def _children(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", child) for key, child in value.items()]
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview)):
        return [(f"[{index}]", child) for index, child in enumerate(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return [(f".{field.name}", getattr(value, field.name)) for field in fields(value)]
    return []


def _is_sendable(value: Any) -> bool:
    try:
        dumps(value)
    except Exception:
        return False
    return True

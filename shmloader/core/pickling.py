"""
The pickle for what the layout cannot say: any picklable object, its large parts outside of it.

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
    def __init__(self, stream):
        super().__init__(stream, protocol=5, buffer_callback=self._keep_buffer)
        forking: Any = ForkingPickler  # its table of reducers is in no stub
        self.dispatch_table: Any = ChainMap(forking._extra_reducers, copyreg.dispatch_table)
        self.buffers = []
        self.storages = []
        self._numbers = {}

    def _keep_buffer(self, buffer):
        self.buffers.append(buffer.raw())

    def persistent_id(self, value):
        """Name a CPU storage by its number; each lies outside once."""
        if type(value) is not torch.UntypedStorage or value.device.type != "cpu":
            return None
        number = self._numbers.setdefault(value._cdata, len(self.storages))
        if number == len(self.storages):
            self.storages.append(_bytes_of(value))
        return number

    def reducer_override(self, value):
        """Reduce CPU tensors to storages, as torch.save does, not to descriptors."""
        if isinstance(value, torch.Tensor) and value.device.type in ("cpu", "meta"):
            _refuse_non_leaf(value)
            return value.__reduce_ex__(5)
        if type(value) is torch.storage.TypedStorage:
            return _typed_storage, (value._untyped_storage, value.dtype)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream, storages, buffers):
        super().__init__(stream, buffers=buffers)
        self._storages = storages

    def persistent_load(self, number):
        """Find the storage of that number."""
        return self._storages[number].storage()

    def find_class(self, module, name):
        """Find a global; what rebuilds tensors of newer dtypes takes no bare storage."""
        if (module, name) == ("torch._utils", "_rebuild_tensor_v3"):
            return _rebuild_tensor_v3
        return super().find_class(module, name)


def _bytes_of(storage):
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy()


def _typed_storage(untyped, dtype):
    return torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)


def _rebuild_tensor_v3(storage, *arguments):
    # torch pickles the bare storage, and expects it as torch.load would have wrapped it.
    typed = _typed_storage(storage, torch.uint8)
    return torch._utils._rebuild_tensor_v3(typed, *arguments)


def _refuse_non_leaf(tensor):
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            "a non-leaf tensor that requires grad cannot leave its process, because autograd does "
            "not reach across: call detach() on it"
        )


def dumps(value):
    """
    Pickle an object.

    Returns:
        The pickle, and a list of the contiguous buffers that lie outside of it.

    Raises:
        Exception: Whatever the object's own reduction raises.
    """
    stream = io.BytesIO()
    pickler = _Pickler(stream)
    pickler.dump(value)
    count = len(pickler.storages).to_bytes(_COUNT_BYTES, "little")
    return count + stream.getvalue(), pickler.storages + pickler.buffers


def loads(pickled, parts):
    """Build an object again from its pickle and the parts that lay outside of it."""
    count = int.from_bytes(pickled[:_COUNT_BYTES], "little")
    stream = io.BytesIO(pickled[_COUNT_BYTES:])
    try:
        return _Unpickler(stream, parts[:count], parts[count:]).load()
    finally:
        # torch keeps every sparse tensor that it rebuilds until they are asked to be valid.
        torch._utils._validate_loaded_sparse_tensors()


def find_unsendable(batch, path="batch"):
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


def _children(value):
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", child) for key, child in value.items()]
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview)):
        return [(f"[{index}]", child) for index, child in enumerate(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return [(f".{field.name}", getattr(value, field.name)) for field in fields(value)]
    return []


def _is_sendable(value):
    try:
        dumps(value)
    except Exception:
        return False
    return True

"""
The pickle for what the layout cannot describe: any picklable object, its large parts beside it.

One pickler serves all objects of a batch, so that these keep what they share, as they do where one
pickle holds the whole batch. Objects that have a node in the layout, and storages of the CPU, are
named by their numbers there; other buffers lie beside the pickle. Memory that is not the CPU's
keeps torch's own reducers.
"""

import copyreg
import io
import pickle
import sys
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

_Reducer = Callable[[Any], Any]


def _no_reducer(kind: type) -> _Reducer | None:
    return None


class Pickler(pickle.Pickler):
    """Pickles the objects of one batch one after the other, what they share once."""

    def __init__(
        self,
        number_of: Callable[[Any], int | None],
        reducer_of: Callable[[type], _Reducer | None] = _no_reducer,
    ) -> None:
        """
        Begin a batch.

        Args:
            number_of: Says an object's number in the layout, None to pickle it.
            reducer_of: Says what takes objects of a class apart, as `core/kinds` does.
        """
        self._chunks: list[bytes] = []
        buffers: list[Any] = []
        # Not a method: a cycle of pickler and callback would keep all that the memo refers to.
        super().__init__(
            _Stream(self._chunks),
            protocol=5,
            buffer_callback=lambda buffer: buffers.append(buffer.raw()),
        )
        forking: Any = ForkingPickler  # its table of reducers is in no stub
        self.dispatch_table: Any = {**copyreg.dispatch_table, **forking._extra_reducers}
        self.persistent_id: Any = number_of
        self._buffers = buffers
        self._reducer_of = reducer_of

    def take(self, value: Any) -> tuple[bytes, list[Any]]:
        """Pickle an object; returns the pickle, and the buffers that lie beside it."""
        try:
            self.dump(value)
        except RecursionError as error:
            limit = sys.getrecursionlimit()
            raise RecursionError(f"{error} (the recursion limit is {limit})") from None
        pickled, buffers = b"".join(self._chunks), self._buffers[:]
        self._chunks.clear()
        self._buffers.clear()
        return pickled, buffers

    def reducer_override(self, value: Any) -> Any:
        """Reduce CPU tensors to storages, as torch.save does, not to descriptors."""
        if isinstance(value, torch.Tensor) and value.device.type in ("cpu", "meta"):
            _refuse_non_leaf(value)
            return value.__reduce_ex__(5)
        if type(value) is torch.storage.TypedStorage:
            return _typed_storage, (value._untyped_storage, value.dtype)
        reducer = self._reducer_of(type(value))
        if reducer is None or type(value) in self.dispatch_table:
            return NotImplemented
        return reducer(value) or NotImplemented


class ValuePickler(Pickler):
    """Pickles values alone, for readers that may come when this process is gone."""

    def __init__(
        self,
        number_of: Callable[[Any], int | None],
        reducer_of: Callable[[type], _Reducer | None] = _no_reducer,
    ) -> None:
        """Begin a sample; arguments as for `Pickler`."""
        super().__init__(number_of, reducer_of)
        # Without multiprocessing's reducers, which send descriptors and handles.
        self.dispatch_table = copyreg.dispatch_table

    def reducer_override(self, value: Any) -> Any:
        """Reduce tensors as `Pickler`, but none of another device: it would be a handle."""
        if isinstance(value, torch.Tensor) and value.device.type not in ("cpu", "meta"):
            raise TypeError(f"a tensor on {value.device}")
        return super().reducer_override(value)


class _Stream:
    """A file to which a pickler writes."""

    def __init__(self, chunks: list[bytes]) -> None:
        self.write = chunks.append


class Unpickler(pickle.Unpickler):
    """Builds the objects of one batch again, in the order in which they were pickled."""

    def __init__(self, object_of: Callable[[int], Any]) -> None:
        """Begin a batch; object_of finds the object that has a number in the layout."""
        self._stream = io.BytesIO()
        self._buffers: list[Any] = []
        super().__init__(self._stream, buffers=self._buffers)
        self.persistent_load: Any = object_of

    def give(self, pickled: bytes, buffers: list[Any]) -> Any:
        """Build an object again from its pickle and the buffers that lay beside it."""
        self._stream.seek(0)
        self._stream.truncate()
        self._stream.write(pickled)
        self._stream.seek(0)
        self._buffers += buffers
        try:
            return self.load()
        finally:
            # torch keeps every sparse tensor that it rebuilds until they are asked to be valid.
            torch._utils._validate_loaded_sparse_tensors()

    def find_class(self, module: str, name: str) -> Any:
        """Find a global; that which rebuilds tensors of newer dtypes takes no bare storage."""
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

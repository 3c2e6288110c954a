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
import reprlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from shmloader.core._core import DEPTH_MAX

_STEPS_SHOWN = 8  # of a path, at its begin and at its end
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80  # of a key


class Pickler(pickle.Pickler):
    """Pickles the objects of one batch one after the other, what they share once."""

    def __init__(self, number_of: Callable[[Any], int | None]) -> None:
        """
        Begin a batch.

        Args:
            number_of: Asked for each object: its number in the layout, or None to pickle it.
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

    def take(self, value: Any) -> tuple[bytes, list[Any]]:
        """
        Pickle an object.

        Returns:
            The pickle, and a list of the contiguous buffers that lie beside it.

        Raises:
            Exception: The error of the object's own reduction.
            RecursionError: It nests deeper than pickle can follow.
        """
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
        return NotImplemented


class ValuePickler(Pickler):
    """Pickles values alone, for readers that may come when this process is gone."""

    def __init__(self, number_of: Callable[[Any], int | None]) -> None:
        """Begin a sample; number_of as for `Pickler`."""
        super().__init__(number_of)
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
        """
        Begin a batch.

        Args:
            object_of: Finds the object that has a number in the layout.
        """
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
        """
        Find what a module calls by a qualified name now, as a pickle would.

        Raises:
            AttributeError: The module has no such name.
            ImportError: There is no such module.
        """
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


def find_unsendable(
    batch: Any, name: str = "batch", kind: type[Pickler] = Pickler
) -> tuple[str, Any] | None:
    """
    Find the first leaf of a batch that is nested too deep or a kind of pickler cannot pickle.

    Args:
        name: What the batch is called.

    Returns:
        (path, leaf), the path written as Python would reach it, the middle of a long one left out;
        or None.
    """
    for steps, value in _walk(batch, name):
        is_too_deep = len(steps) > DEPTH_MAX and _children(value)
        if is_too_deep or not _is_sendable(value, kind):
            return _path_of(steps), value
    return None


def find_deepest(batch: Any, name: str = "batch") -> tuple[str, Any]:
    """Find the leaf that is nested deepest; its path and itself, as `find_unsendable`."""
    deepest: list[str] = []
    leaf = batch
    for steps, value in _walk(batch, name):
        if len(steps) > len(deepest):
            deepest, leaf = steps.copy(), value
    return _path_of(deepest), leaf


def _walk(batch: Any, name: str) -> Iterator[tuple[list[str], Any]]:
    """Yield each object of a batch once, those inside it first, with the steps that lead to it."""
    # Not by recursion: a batch that is nested too deep is one of those that are looked at.
    steps, seen = [name], {id(batch): batch}
    around = [(batch, iter(_children(batch)))]
    while around:
        value, children = around[-1]
        for step, child in children:
            if id(child) not in seen:
                seen[id(child)] = child
                inside = _children(child) if len(steps) < DEPTH_MAX else []
                steps.append(step)
                around.append((child, iter(inside)))
                break
        else:
            yield steps, value
            around.pop()
            steps.pop()


def _path_of(steps: list[str]) -> str:
    if len(steps) <= 2 * _STEPS_SHOWN:
        return "".join(steps)
    return "".join([*steps[:_STEPS_SHOWN], "...", *steps[-_STEPS_SHOWN:]])


def _children(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(f"[{_SHORT.repr(key)}]", child) for key, child in value.items()]
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview)):
        return [(f"[{index}]", child) for index, child in enumerate(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return [(f".{field.name}", getattr(value, field.name)) for field in fields(value)]
    return []


def _is_sendable(value: Any, kind: type[Pickler]) -> bool:
    try:
        kind(_number_of_storage).take(value)
    except Exception:
        return False
    return True


def _number_of_storage(value: Any) -> int | None:
    """Give a storage of the CPU a number: those never fail."""
    is_storage = type(value) is torch.UntypedStorage and value.device.type == "cpu"
    return 0 if is_storage else None

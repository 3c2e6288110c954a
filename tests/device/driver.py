"""A driver of CUDA that is none, for slots that are page-locked: copies are done when told to."""

import ctypes
import functools
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function

from shmloader.core import open_driver
from shmloader.pinning.pinned_slots import pin
from tests.device.standin import StandIn

_ROOT = next(path for path in Path(__file__).resolve().parents if (path / "setup.py").exists())
_SOURCE = _ROOT / "tests" / "protocol" / "c" / "standin_driver.c"
_FAULTS = (
    "unregistered under a copy",
    "a copy from memory that is not registered",
    "a call without a context, or to a device that is not in use",
    "registered while a graph is captured",
    "an event that does not exist or was not recorded",
)


@functools.cache
def library() -> str:
    """Compile the stand-in, once for each of its versions. Returns its path."""
    folder = _ROOT / "build" / "standin"
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f"libcuda-{_SOURCE.stat().st_mtime_ns}.so"
    if not made.exists():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            compiled = Path(scratch) / "lib.so"
            command = [os.environ.get("CC", "cc"), "-O1", "-shared", "-fPIC", "-pthread"]
            subprocess.run([*command, "-o", str(compiled), str(_SOURCE)], check=True)
            os.replace(compiled, made)
    return str(made)


class Driver:
    """
    What a test tells and asks the stand-in; its variables are attributes.

    Attributes:
        kept: What copies write, which must live as long as they may.
    """

    def __init__(self) -> None:
        self.lib = ctypes.CDLL(library())
        self.lib.standin_waiting.restype = ctypes.c_int64
        self.kept: list[torch.Tensor] = []

    def _variable(self, name: str) -> ctypes.c_int:
        return ctypes.c_int.in_dll(self.lib, f"standin_{name}")

    def __getattr__(self, name: str) -> int:
        return self._variable(name).value

    def set(self, **values: int) -> None:
        for name, value in values.items():
            self._variable(name).value = value

    def begin(self) -> None:
        self.lib.standin_begin()
        self.kept.clear()

    @property
    def faults(self) -> list[str]:
        found = self._variable("faults").value
        return [text for bit, text in enumerate(_FAULTS) if found & (1 << bit)]

    @property
    def waiting(self) -> int:
        return int(self.lib.standin_waiting())

    def holds(self, tensor: torch.Tensor) -> bool:
        """Returns True if all of a tensor lies in registered memory."""
        bytes_ = ctypes.c_size_t(tensor.untyped_storage().nbytes())
        address = ctypes.c_void_p(tensor.untyped_storage().data_ptr())
        return bool(self.lib.standin_holds(address, bytes_))

    def begin_copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        """Begin a copy between dense tensors of one kind."""
        self.kept.append(to)
        addresses = (ctypes.c_void_p(each.data_ptr()) for each in (to, source))
        self.lib.standin_copy(*addresses, ctypes.c_size_t(source.nbytes))

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Begin a copy of a contiguous tensor. Returns what holds its values once that is done."""
        assert tensor.is_contiguous()
        there = torch.full_like(tensor, 77)
        self.begin_copy(there, tensor)
        return there

    def finish(self, most: int = -1) -> None:
        """Let the first copies be done that are not: so many, or all."""
        self.lib.standin_finish(ctypes.c_int64(most))


class Gpu:
    """
    A program's view of a GPU that is none.

    Attributes:
        backend: For loaders with `device=`.
        names: What is to be patched, so that loaders pin, and copy, as with a GPU.
    """

    def __init__(self) -> None:
        self.driver = Driver()
        self.own: dict[int, torch.Tensor] = {}  # torch's pinned memory, by address
        assert open_driver(library().encode()) == 0
        self.driver.begin()
        self.backend = StandIn(self.driver)
        self.names: dict[str, Any] = {
            "torch.accelerator.is_available": lambda: True,
            "torch.accelerator.current_device_index": lambda: 0,
            "torch.Tensor.pin_memory": lambda tensor, *_: self.pin_memory(tensor),
            "shmloader.pinning.pinned_slots.may_lock": lambda: True,
            "shmloader.pinning.host_delivery.pin": lambda leaf: pin(leaf, self.empty),
            "shmloader.device.to_device.backend_for": lambda device: self.backend,
            "shmloader.device.in_process.backend_for": lambda device: self.backend,
        }

    def empty(self, like: torch.Tensor) -> torch.Tensor:
        made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
        self.own[made.untyped_storage().data_ptr()] = made
        return made

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        is_own = tensor.untyped_storage().data_ptr() in self.own
        return is_own or self.driver.holds(tensor)

    def pin(self, tensor: torch.Tensor, *_) -> torch.Tensor:
        if tensor.layout is not torch.strided or tensor.is_meta or type(tensor) is not torch.Tensor:
            return tensor  # only torch's own can, or cannot
        return tensor if self.is_pinned(tensor) else self.empty(tensor).copy_(tensor)

    def pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        """As torch's method, of which modes and subclasses hear."""
        if has_torch_function((tensor,)):
            return handle_torch_function(torch.Tensor.pin_memory, (tensor,), tensor)
        return self.pin(tensor)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """As `tensor.to("cuda", non_blocking=True)`; of torch's own memory it is done at once."""
        if tensor.untyped_storage().data_ptr() in self.own:
            return tensor.clone()
        return self.driver.copy(tensor)

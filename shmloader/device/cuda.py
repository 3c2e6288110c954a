"""
CUDA, and HIP, which torch calls by the same names.

A slot is registered by the runtime's own call, because torch's allocator of pinned memory knows
only what it allocated itself. So torch neither keeps registered memory until a copy is done, nor
says when one is: that is what the events of `copies.py` are for.
"""

import contextlib
from typing import Any

import torch

from shmloader.device.backend import Backend, kept_stream

_PORTABLE = 1  # cudaHostRegisterPortable: for all devices, whichever is current


class Cuda(Backend):
    """A device of CUDA or HIP."""

    registers = True

    def __init__(self, device: torch.device) -> None:
        """Copy to a device, on the stream that is kept for it."""
        torch.cuda.init()
        super().__init__(device, kept_stream(device, torch.cuda.Stream))
        self._runtime: Any = torch.cuda.cudart()

    def copying(self) -> contextlib.AbstractContextManager[Any]:
        """Issue what runs inside on the stream of copies, with its device as the current one."""
        context: contextlib.AbstractContextManager[Any] = torch.cuda.stream(self._stream)
        return context

    def register(self, address: int, length: int) -> None:
        """Page-lock memory by cudaHostRegister."""
        self._check("cudaHostRegister", self._runtime.cudaHostRegister(address, length, _PORTABLE))

    def unregister(self, address: int) -> None:
        """Undo it by cudaHostUnregister."""
        self._check("cudaHostUnregister", self._runtime.cudaHostUnregister(address))

    def _check(self, call: str, status: Any) -> None:
        if int(status) == 0:
            return
        reason = self._runtime.cudaGetErrorString(status)
        self._forget_error()
        raise RuntimeError(f"{call}: {reason}")

    def _forget_error(self) -> None:
        """Have the runtime's last error read, or torch would raise it after the next kernel."""
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=self.device)

    def _current(self) -> Any:
        return torch.cuda.current_stream(self.device)

    def is_capturing(self) -> bool:
        """Returns True while the current stream captures a CUDA graph."""
        return torch.cuda.is_current_stream_capturing()

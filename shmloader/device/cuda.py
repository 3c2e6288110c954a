"""CUDA, and HIP, which torch calls by the same names."""

import contextlib
from typing import Any

import torch

from shmloader.device.backend import Backend, kept_stream


class Cuda(Backend):
    """A device of CUDA or HIP."""

    reads_slots = True  # unless its driver says no

    def __init__(self, device: torch.device) -> None:
        """Copy to a device, on the stream that is kept for it."""
        torch.cuda.init()
        super().__init__(device, kept_stream(device, torch.cuda.Stream))

    def copying(self) -> contextlib.AbstractContextManager[Any]:
        """Issue what runs inside on the stream of copies, with its device as the current one."""
        context: contextlib.AbstractContextManager[Any] = torch.cuda.stream(self._stream)
        return context

    def _current(self) -> Any:
        return torch.cuda.current_stream(self.device)

    def is_capturing(self) -> bool:
        """Returns True while the current stream captures a CUDA graph."""
        return torch.cuda.is_current_stream_capturing()

"""
The seam to accelerators: what differs between them, and nothing else.

Copies run on a stream of their own, in the order in which they are issued. All else that is done
with a batch on its way to a device (when a slot may be used again, what is ahead, what happens to
errors) knows no accelerator, and is tested with a stand-in whose copies finish when a test says so.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

# The one stream of copies to each device. torch's allocator gives what was taken on a stream to
# that stream alone: with a new one for each epoch, the memory of all epochs before would lie idle.
_kept: dict[torch.device, Any] = {}


def kept_stream(device: torch.device, make: Callable[[torch.device], Any]) -> Any:
    """Return the stream of copies to a device, which is made when it is asked for first."""
    if device not in _kept:
        _kept.setdefault(device, make(device))
    return _kept[device]


def _another(stream: Any) -> Any:
    """Make another object for a stream: a `with` block keeps what was current before in it."""
    return torch.Stream(
        stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
    )


class Backend:
    """
    Any accelerator of torch with streams and pinned memory, as the copies of an iterator use it.

    Attributes:
        device: Where copies go, with its index.
        reads_slots: True if slots can be page-locked for it.
    """

    reads_slots = False  # torch has no call for it that all accelerators have

    def __init__(self, device: torch.device, stream: Any = None) -> None:
        """Copy to a device on a stream; None: the one that is kept for the device."""
        self.device = device
        self._stream: Any = (
            _another(kept_stream(device, torch.Stream)) if stream is None else stream
        )

    def pinned(
        self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        """Make a tensor in page-locked memory of torch's own."""
        # The device is said, because the default one may be another.
        return torch.empty_strided(shape, strides, dtype=dtype, device="cpu", pin_memory=True)

    def copying(self) -> AbstractContextManager[Any]:
        """Issue what runs inside on the stream of copies, and take device memory there."""
        context: AbstractContextManager[Any] = self._stream
        return context

    def copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        """Begin a copy; source must stay as it is until it is done."""
        to.copy_(source, non_blocking=True)

    def record(self) -> Any:
        """Return an event that is done when all copies issued so far are."""
        return self._stream.record_event()

    def wait(self, event: Any, tensors: Sequence[torch.Tensor]) -> None:
        """
        Have the caller's current stream wait for an event before its next work.

        Args:
            tensors: Made while `copying`, and used by that stream from now on: their memory goes
                back only after what it does with them.
        """
        current = self._current()
        current.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(current)

    def mark(self) -> Any:
        """Return an event that is done when all that the caller's current stream has is."""
        return self._current().record_event()

    def _current(self) -> Any:
        return torch.accelerator.current_stream(self.device)

    def follow(self, event: Any) -> None:
        """Have the stream of copies wait for such an event before its next work."""
        self._stream.wait_event(event)

    def is_capturing(self) -> bool:
        """Returns True while the current stream records a graph, into which no copy may get."""
        return False  # only some accelerators have graphs


class Cuda(Backend):
    """A device of CUDA, or of HIP, which torch calls by the same names."""

    reads_slots = True  # unless its driver says no

    def __init__(self, device: torch.device) -> None:
        """Copy to a device, on the stream that is kept for it."""
        torch.cuda.init()
        super().__init__(device, kept_stream(device, torch.cuda.Stream))

    def copying(self) -> AbstractContextManager[Any]:
        """Issue what runs inside on the stream of copies, with its device as the current one."""
        context: AbstractContextManager[Any] = torch.cuda.stream(self._stream)
        return context

    def _current(self) -> Any:
        return torch.cuda.current_stream(self.device)

    def is_capturing(self) -> bool:
        """Returns True while the current stream captures a CUDA graph."""
        return torch.cuda.is_current_stream_capturing()


def backend_for(device: str | torch.device) -> Backend:
    """Find the accelerator that an option names."""
    wanted = torch.device(device)
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None or found.type != wanted.type:
        has = "none is available" if found is None else f'what is available is "{found.type}"'
        raise ValueError(
            f'device="{device}" names an accelerator, but {has}: omit device, or pass '
            'device="cpu", which leaves batches in CPU memory'
        )
    count = torch.accelerator.device_count()
    if wanted.index is not None and wanted.index >= count:
        raise ValueError(
            f'device="{device}" does not exist: what is available is "{wanted.type}:0"'
            + (f' to "{wanted.type}:{count - 1}"' if count > 1 else "")
        )
    if wanted.index is None:
        wanted = torch.device(wanted.type, torch.accelerator.current_device_index())
    return Cuda(wanted) if wanted.type == "cuda" else Backend(wanted)

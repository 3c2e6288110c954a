"""What every accelerator does by torch's streams and events, which have one interface for all."""

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
        stream_id=stream.stream_id,
        device_index=stream.device_index,
        device_type=stream.device_type,
    )


class Streams:
    """The part of a `Backend` that is the same for all accelerators."""

    def __init__(self, device: torch.device, stream: Any = None) -> None:
        """
        Copy to a device.

        Args:
            stream: Of the copies; None: the one that is kept for the device.
        """
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
        """Issue what runs inside on the stream of copies."""
        context: AbstractContextManager[Any] = self._stream
        return context

    def copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        """Begin a copy on the current stream."""
        to.copy_(source, non_blocking=True)

    def record(self) -> Any:
        """Return an event after all copies so far."""
        return self._stream.record_event()

    def query(self, event: Any) -> bool:
        """Returns True if an event is done."""
        return bool(event.query())

    def wait(self, event: Any, tensors: Sequence[torch.Tensor]) -> None:
        """Have the current stream of the device wait for an event, and note what it will use."""
        current = torch.accelerator.current_stream(self.device)
        current.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(current)

    def mark(self) -> Any:
        """Return an event after the current stream's work so far."""
        return torch.accelerator.current_stream(self.device).record_event()

    def follow(self, event: Any) -> None:
        """Have the stream of copies wait for an event."""
        self._stream.wait_event(event)

    def is_capturing(self) -> bool:
        """Returns False: only some accelerators have graphs."""
        return False

"""
The seam to accelerators: what differs between them, and nothing else.

Copies run on a stream of their own, in the order in which they are issued. All else that is done
with a batch on its way to a device (when a slot may be used again, what is ahead, what happens to
errors) knows no accelerator, and is tested with a stand-in whose copies finish when a test says so.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch


class Backend(Protocol):
    """
    One accelerator as the copies of one iterator use it.

    Attributes:
        device: Where copies go, with its index.
        registers: True if it can page-lock memory that is not its own.
    """

    device: torch.device
    registers: bool

    def register(self, address: int, length: int) -> None:
        """
        Page-lock memory, so that copies from it need no memory in between.

        Raises:
            RuntimeError: The accelerator refuses; nothing has happened.
        """
        ...

    def unregister(self, address: int) -> None:
        """Undo `register`; no copy from there may be under way."""
        ...

    def pinned(
        self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        """Make a tensor in page-locked memory of torch's own."""
        ...

    def copying(self) -> AbstractContextManager[Any]:
        """Issue what runs inside on the stream of copies, and take device memory there."""
        ...

    def copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        """Begin a copy; source must stay as it is until an event that is recorded later is done."""
        ...

    def record(self) -> Any:
        """Return an event that is done when all copies issued so far are."""
        ...

    def query(self, event: Any) -> bool:
        """
        Returns True if an event is done. Never waits.

        Raises:
            RuntimeError: A copy failed; the accelerator may be of no use any more.
        """
        ...

    def wait(self, event: Any, tensors: Sequence[torch.Tensor]) -> None:
        """
        Have the caller's current stream wait for an event before its next work.

        Args:
            tensors: Made while `copying`, and used by that stream from now on: their memory goes
                back only after what it does with them.
        """
        ...

    def mark(self) -> Any:
        """Return an event that is done when all that the caller's current stream has is."""
        ...

    def follow(self, event: Any) -> None:
        """Have the stream of copies wait for such an event before its next work."""
        ...

    def is_capturing(self) -> bool:
        """Returns True while the current stream records a graph, into which no copy may get."""
        ...


def backend_for(device: str | torch.device) -> Backend:
    """
    Find the accelerator that an option names.

    Raises:
        ValueError: This machine, or this torch, has none of that kind.
    """
    wanted = torch.device(device)
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None or found.type != wanted.type:
        has = "none is available" if found is None else f'what is available is "{found.type}"'
        raise ValueError(
            f'device="{device}" names an accelerator, but {has}: leave it out, or pass '
            'device="cpu", which leaves batches where they are'
        )
    count = torch.accelerator.device_count()
    if wanted.index is not None and wanted.index >= count:
        raise ValueError(
            f'device="{device}" is not there: what is available is "{wanted.type}:0"'
            + (f' to "{wanted.type}:{count - 1}"' if count > 1 else "")
        )
    if wanted.index is None:
        wanted = torch.device(wanted.type, torch.accelerator.current_device_index())
    if wanted.type == "cuda":
        from shmloader.trainer.device.cuda import Cuda

        return Cuda(wanted)
    from shmloader.trainer.device.pinning import Pinning

    return Pinning(wanted)

"""Where the leaves of a batch lie: in slots of ours, or in files that torch makes in /dev/shm."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

REFUSED = "a file in /dev/shm"


def in_slots(tensors: Iterable[torch.Tensor]) -> list[bool]:
    """Tell for each tensor if it lies in a segment of ours that this process maps."""
    segments = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/memfd:shmloader" in line:
            first, _, end = line.partition(" ")[0].partition("-")
            segments.append(range(int(first, 16), int(end, 16)))
    return [any(tensor.data_ptr() in segment for segment in segments) for tensor in tensors]


def no_file(worker: int) -> None:
    """Refuse the file that torch makes in /dev/shm for each storage that a worker shares."""

    def refuse(*_: Any) -> None:
        raise RuntimeError(REFUSED)

    storage: Any = torch.UntypedStorage
    storage._new_using_fd_cpu = staticmethod(refuse)  # made by a collate function
    storage._share_fd_cpu_ = refuse  # made to send a tensor

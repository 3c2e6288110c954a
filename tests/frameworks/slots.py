"""Where the leaves of a batch lie: in slots of ours, or in files that torch makes in /dev/shm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.helpers.segments import in_slots

from .ways import TORCH, WRAP, Way

REFUSED = "a file in /dev/shm"


def assert_lie_in_slots(loader: Any, leaves: Callable[[Any], list[torch.Tensor]]) -> None:
    """Check that each leaf of each batch lies in its slot, none is copied out, no slot is lost."""
    with loader:
        for batch in loader:
            assert all(in_slots(leaves(batch)))
            assert 1 == len(loader.held())
        stats = loader.stats()
    assert len(loader) == stats.batches
    assert (0, 0) == (stats.spilled, stats.retired)


def assert_no_file_is_made(make: Callable[[Way], Any]) -> None:
    """Check that workers that may make no file deliver every batch, and that torch's cannot."""
    with pytest.raises(RuntimeError, match=REFUSED):
        list(make(TORCH))
    with make(WRAP) as loader:
        assert len(loader) == len(list(loader))


def no_file(worker: int) -> None:
    """Refuse the file that torch makes in /dev/shm for each storage that a worker shares."""

    def refuse(*_: Any) -> None:
        raise RuntimeError(REFUSED)

    storage: Any = torch.UntypedStorage
    storage._new_using_fd_cpu = staticmethod(refuse)  # made by a collate function
    storage._share_fd_cpu_ = refuse  # made to send a tensor

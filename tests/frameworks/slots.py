"""Where the leaves of a batch lie: in slots of ours, or in files that torch makes in /dev/shm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.helpers.segments import in_slots


def assert_lie_in_slots(loader: Any, leaves: Callable[[Any], list[torch.Tensor]]) -> None:
    """Check that each leaf of each batch lies in its slot, none is copied out, no slot is lost."""
    with loader:
        for batch in loader:
            assert all(in_slots(leaves(batch)))
            assert 1 == len(loader.held())
        stats = loader.stats()
    assert len(loader) == stats.batches
    assert (0, 0) == (stats.spilled, stats.retired)

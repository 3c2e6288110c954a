"""What came of what was to come."""

from collections.abc import Sequence
from typing import Any

from torch.utils.data import DataLoader


def due(rows: int, epochs: int, **order: Any) -> list[list[int]]:
    """List the indices of each batch of some epochs, as torch's loader has them."""
    # Workers that live on: a start of workers draws from the generator too.
    loader = DataLoader(range(rows), num_workers=1, persistent_workers=True, **order)
    return [batch.tolist() for _ in range(epochs) for batch in loader]


def right(came: Sequence[list[int]], wanted: Sequence[list[int]]) -> int:
    """Count the batches that came whole and in order; others may lack between them."""
    place = found = 0
    for batch in came:
        if batch in wanted[place:]:
            place = wanted.index(batch, place) + 1
            found += 1
    return found

"""What is loaded, for every question: datasets of known cost and content, one kind in each file."""

from collections.abc import Callable
from typing import Any

from torch.utils.data import Dataset


class Made(Dataset):
    """Sample i is what a function returns for i."""

    def __init__(self, count: int, make: Callable[[int], Any]):
        self._count, self._make = count, make

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        return self._make(index)


class Indices(Made):
    """Samples that cost nothing: their own indices."""

    def __init__(self, count: int):
        super().__init__(count, int)

    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices


def as_columns(samples: Any) -> Any:
    """Collate pairs as detection does: a tuple of all first parts, and one of all second ones."""
    return tuple(zip(*samples, strict=True))


def as_it_is(samples: Any) -> Any:
    """Collate nothing: a batch is the list of its samples, or what the dataset made."""
    return samples

"""
The loads: what a program reads with torch's loader, and the cure that it can have with ours.

Each makes the same batches with and without its cure, in every bit, so a digest compares them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import Dataset

from bench.questions.caching.pictures import PICTURE_BYTES, Decoded, KeptByEach
from bench.questions.growth import Leaking
from bench.questions.lists.stores import Figures, annotations
from shmloader import SharedList, cached

_IMAGE = (3, 224, 224)
_CACHE_ROOM = 1.1  # times the pixels: what describes a sample is kept too
_LEAK_WAIT_S = 0.02  # so that a worker takes seconds for what is too much


class Fresh(Dataset):
    """Images (3, 224, 224) float32 that are made when they are asked for, and their numbers."""

    def __init__(self, count: int):
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full(_IMAGE, index % 251, dtype=torch.float32), index


@dataclass(frozen=True)
class Load:
    """
    What is loaded.

    Attributes:
        grows: What takes the memory with torch, in the words of a table.
        cure: What is changed besides the loader, in the same words; empty: nothing is.
        plain: Makes the dataset, of so many samples.
        cured: The same with the cure.
        step_s: What each step of the training waits for.
        options: Of both loaders.
        ours: Of ours alone, with the cure.
    """

    grows: str
    cure: str
    plain: Callable[[int], Any]
    cured: Callable[[int], Any]
    samples: int
    batch: int
    workers: int
    epochs: int = 1
    step_s: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)
    ours: dict[str, Any] = field(default_factory=dict)

    @property
    def suits_torch(self) -> bool:
        """True if the cure works with torch's loader too."""
        return bool(self.cure) and not self.ours


def _cached(count: int) -> Any:
    return cached(Decoded(count), int(count * PICTURE_BYTES * _CACHE_ROOM))


def _leaking(count: int) -> Any:
    return Leaking(count, None, _LEAK_WAIT_S)


LOADS = {
    "annotations": Load(
        "a list of annotations",
        "`SharedList`",
        lambda count: Figures(list(annotations(count)), count),
        lambda count: Figures(SharedList(annotations(count)), count),
        samples=60_000, batch=256, workers=8, epochs=2, step_s=0.01,
        options={"persistent_workers": True, "shuffle": True},
    ),
    "pictures": Load(
        "pictures that each worker keeps",
        "`cached()`",
        KeptByEach,
        _cached,
        samples=1536, batch=64, workers=4, epochs=4,
        options={"persistent_workers": True, "shuffle": True},
    ),
    "leak": Load(
        "5 MB that each sample leaves",
        "`worker_bytes`",
        _leaking,
        _leaking,
        samples=600, batch=8, workers=2,
        ours={"worker_bytes": 200_000_000},
    ),
    "batches": Load(
        "batches of 38.5 MB that are ahead",
        "",
        Fresh,
        Fresh,
        samples=64 * 40, batch=64, workers=4, step_s=0.06, options={"prefetch_factor": 8},
    ),
}  # fmt: skip

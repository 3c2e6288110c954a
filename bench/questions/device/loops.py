"""The loops that are compared: each yields batches on the device, as its users write it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.data import Dataset

from bench.loaders import opened

Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Load:
    """What all loops move: batches of images (3, side, side) uint8, and their indices."""

    dataset: Dataset[Any]
    batch_size: int
    workers: int
    batches: int

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of every loader."""
        options = {"batch_size": self.batch_size, "num_workers": self.workers}
        return {**options, "prefetch_factor": 4, "persistent_workers": True}


def _moved(loader: str, load: Load, **options: Any) -> Batches:
    pins = options.get("pin_memory", False)
    with opened(loader, load.dataset, **load.options, **options) as loaded:
        for images, labels in loaded:
            yield images.to("cuda", non_blocking=pins), labels.to("cuda", non_blocking=pins)


def _on_device(load: Load) -> Batches:
    with opened("ours", load.dataset, **load.options, device="cuda") as loaded:
        yield from loaded


LOOPS: dict[str, Callable[[Load], Batches]] = {
    "shmloader, device=": _on_device,
    "shmloader, pin_memory": partial(_moved, "ours", pin_memory=True),
    "shmloader": partial(_moved, "ours"),
    "torch, pin_memory": partial(_moved, "torch", pin_memory=True),
    "torch": partial(_moved, "torch"),
}

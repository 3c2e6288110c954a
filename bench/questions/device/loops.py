"""The loops that are compared: each yields batches on the device, as its users write it."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from bench.loaders import opened

Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


def _moved(loader: str, *, pin_memory: bool = False, **load: Any) -> Batches:
    with opened(loader, pin_memory=pin_memory, **load) as loaded:
        for images, labels in loaded:
            yield tuple(each.to("cuda", non_blocking=pin_memory) for each in (images, labels))


def _on_device(**load: Any) -> Batches:
    with opened("ours", device="cuda", **load) as loaded:
        yield from loaded


# Each takes the arguments of its loader.
LOOPS: dict[str, Callable[..., Batches]] = {
    "shmloader, device=": _on_device,
    "shmloader, pin_memory": partial(_moved, "ours", pin_memory=True),
    "shmloader": partial(_moved, "ours"),
    "torch, pin_memory": partial(_moved, "torch", pin_memory=True),
    "torch": partial(_moved, "torch"),
}

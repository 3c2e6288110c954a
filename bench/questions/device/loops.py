"""The loops that are compared: each yields batches on the device, as its users write it."""

import importlib.util
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.data import Dataset

import shmloader
from bench.contenders._torch import TorchLoader

_AHEAD = 2

Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Load:
    """
    What all loops move: images (3, side, side) uint8, batch_size of them, and their indices.

    Attributes:
        batches: How many.
    """

    dataset: Dataset[Any]
    batch_size: int
    workers: int
    batches: int

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of every loader."""
        options = {"batch_size": self.batch_size, "num_workers": self.workers}
        return {**options, "prefetch_factor": 4, "persistent_workers": True}


def _moved(kind: type, load: Load, **options: Any) -> Batches:
    pins = options.get("pin_memory", False)
    with closing(kind(load.dataset, **load.options, **options)) as loader:
        for images, labels in loader:
            yield images.to("cuda", non_blocking=pins), labels.to("cuda", non_blocking=pins)


def _on_device(load: Load) -> Batches:
    with closing(shmloader.DataLoader(load.dataset, **load.options, device="cuda")) as loader:
        yield from loader


def _by_timm(load: Load) -> Batches:
    """Its loader makes floats of the images, which costs the device a little more."""
    from timm.data.loader import PrefetchLoader

    with closing(TorchLoader(load.dataset, **load.options, pin_memory=True)) as loader:
        yield from PrefetchLoader(loader, mean=(0, 0, 0), std=(1 / 255,) * 3)


def _by_spdl(load: Load) -> Batches:
    """Its transfer on a thread, as its documentation says, two batches ahead."""
    import spdl.io

    transfer = getattr(spdl.io, "transfer_tensor_h2d", None) or spdl.io.transfer_tensor
    loader = TorchLoader(load.dataset, **load.options)
    with closing(loader), ThreadPoolExecutor(1) as thread:
        batches = iter(loader)
        waiting = [thread.submit(transfer, next(batches)) for _ in range(_AHEAD)]
        while waiting:
            batch = waiting.pop(0).result()
            following = next(batches, None)
            if following is not None:
                waiting.append(thread.submit(transfer, following))
            yield batch


def loops() -> dict[str, Callable[[Load], Batches]]:
    """List the loops that can run here, by name."""
    found = {
        "shmloader, device=": _on_device,
        "shmloader, pin_memory": partial(_moved, shmloader.DataLoader, pin_memory=True),
        "shmloader": partial(_moved, shmloader.DataLoader),
        "torch, pin_memory": partial(_moved, TorchLoader, pin_memory=True),
        "torch": partial(_moved, TorchLoader),
    }
    for module, name, loop in (("timm", "timm's prefetcher", _by_timm), ("spdl", "SPDL", _by_spdl)):
        if importlib.util.find_spec(module) is None:
            print(f"skipped {name}: {module} is not installed")
        else:
            found[name] = loop
    return found

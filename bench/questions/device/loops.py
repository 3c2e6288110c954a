"""The loops that are compared: the ways of batches to the device, as their users write them."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

# The loader, and its options.
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "shmloader, device=": ("ours", {"device": "cuda"}),
    "shmloader, pin_memory": ("ours", {"pin_memory": True}),
    "shmloader": ("ours", {}),
    "torch, pin_memory": ("torch", {"pin_memory": True}),
    "torch": ("torch", {}),
}


def on_device(loader: Any) -> Iterator[Any]:
    """Give the batches of an epoch on the device; those that are there stay as they are."""
    return map(partial(_moved, loader.pin_memory), loader)


def _moved(non_blocking: bool, batch: Any) -> list[torch.Tensor]:
    return [each.to("cuda", non_blocking=non_blocking) for each in batch]


def run(batches: Iterator[Any], step: Callable[..., None]) -> dict[str, Any]:
    """Take a step with each batch; the seconds of all, of each next(), and of CPU in a next()."""
    waits, cpu_s, began = [], 0.0, time.perf_counter()
    while True:
        asked, asked_cpu = time.perf_counter(), time.thread_time()
        batch = next(batches, None)
        if batch is None:
            break
        waits.append(time.perf_counter() - asked)
        cpu_s += time.thread_time() - asked_cpu
        step(*batch)
        del batch
    torch.cuda.synchronize()
    return {"s": time.perf_counter() - began, "waits": waits, "next_cpu_s": cpu_s / len(waits)}

"""A training on a GPU, resnet18 in bfloat16, by each way of its batches there."""

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch
from torch.utils.data import Dataset

from bench.driver import in_turns, middle
from bench.loaders import LOADERS
from bench.loads import Made
from bench.loads.images import SIDE, crops
from bench.question import Options

_CACHED = "a batch that stays on the device"
_CLASSES = 1000
_DISTINCT = 1 << 16  # more indices than are asked for

Batch = Any  # of images and labels
Loop = Callable[[], Iterator[Batch]]  # its batches, on the device; one epoch a call


def floats(count: int) -> Dataset[Any]:
    """Samples ((3, 224, 224) float32, label), made of pictures in the worker."""
    pictures = crops(_DISTINCT)

    def make(index: int) -> tuple[torch.Tensor, int]:
        picture, _ = pictures[index]
        return picture.float().div_(255), index % _CLASSES

    return Made(count, make)


def records(options: Options) -> Iterator[dict]:
    """Train with each way in turns, an epoch at a time; right are those with torch's batches."""
    if find_spec("torchvision") is None or not torch.cuda.is_available():
        sys.exit("bench device --part training needs torchvision and a GPU that torch finds")
    from torchvision.models import resnet18

    size = options.training_batch
    dataset = floats(size * options.training_steps)
    loaders = {
        "torch, pin_memory": ("torch", {"pin_memory": True}),
        "shmloader, pin_memory": ("ours", {"pin_memory": True}),
        "shmloader, device=": ("ours", {"device": "cuda"}),
    }
    given = {"batch_size": size, "num_workers": options.workers, "prefetch_factor": 3}
    opened = {
        name: LOADERS[kind](dataset, persistent_workers=True, **given, **more)
        for name, (kind, more) in loaders.items()
    }
    loops: dict[str, Loop] = {name: partial(moved, loader) for name, loader in opened.items()}
    loops[_CACHED] = partial(cached, dataset, size)
    trainings = {}
    for name in loops:
        torch.manual_seed(0)  # so that all begin with the same weights
        trainings[name] = Training(resnet18())
    try:
        found = in_turns(
            loops, options.training_epochs, lambda name: trainings[name].run(loops[name]())
        )
    finally:
        for loader in opened.values():
            loader.close()
    for name, epochs in found.items():
        yield _row(name, epochs, found, size)


def _row(name: str, epochs: list[dict], found: dict[str, list[dict]], size: int) -> dict:
    """Describe the epochs of a way, the first one apart."""
    first, later, right = epochs[0], epochs[1:], found["torch, pin_memory"]
    return {
        "loop": name,
        "MB": size * 3 * SIDE * SIDE * 4 / 1e6,
        "ms per step": middle(later, "step_s", 1e3),
        "times cached": middle(later, "step_s") / middle(found[_CACHED][1:], "step_s"),
        "next() ms": middle(later, "next_s", 1e3),
        "trainer CPU ms": middle(later, "next_cpu_s", 1e3),
        "first batch s": first["first_batch_s"],
        "first epoch s": first["s"],
        "loss": epochs[-1]["loss"],
        "correct": name == _CACHED or [e["sums"] for e in epochs] == [e["sums"] for e in right],
    }


def moved(loader: Any) -> Iterator[Batch]:
    """Iterate a loader as its users do."""
    for batch in loader:
        yield [each.to("cuda", non_blocking=True) for each in batch]


def cached(dataset: Dataset[Any], size: int) -> Iterator[Batch]:
    """Yield one batch again and again, which was copied before."""
    images, labels = zip(*(dataset[index] for index in range(size)), strict=True)
    batch = torch.stack(images).cuda(), torch.tensor(labels).cuda()
    for _ in range(len(dataset) // size):  # type: ignore[arg-type]
        yield batch


class Training:
    """A model, and the steps that it takes."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model.to("cuda", memory_format=torch.channels_last).train()
        self._optimizer = torch.optim.SGD(self._model.parameters(), 0.01, momentum=0.9)

    def _step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        images = images.to(memory_format=torch.channels_last)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(self._model(images), labels)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        return loss.detach()

    def run(self, batches: Iterator[Batch]) -> dict:
        """Train for an epoch, never more than one step ahead of the device."""
        losses, sums, waits = [], [], []
        began = time.perf_counter()
        next_cpu_s = 0.0
        while True:
            asked, asked_cpu = time.perf_counter(), time.thread_time()
            batch = next(batches, None)
            if batch is None:
                break
            waits.append(time.perf_counter() - asked)
            next_cpu_s += time.thread_time() - asked_cpu
            images, labels = batch
            # Of the bits: equal sums of floats would not say that the values were equal.
            sums.append(images.view(torch.int32).sum(dtype=torch.int64) + labels.sum())
            losses.append(self._step(images, labels))
            del batch, images, labels
            if len(losses) > 1:
                losses[-2].item()  # as a training does that prints its loss
        found = [int(each) for each in sums]  # waits for the device
        took_s = time.perf_counter() - began
        return {
            "s": took_s,
            "step_s": took_s / len(losses),
            "first_batch_s": waits[0],
            "next_s": median(waits),
            "next_cpu_s": next_cpu_s / len(losses),
            "loss": float(losses[-1]),
            "sums": found,
        }

"""
Ways of batches to a GPU: copy rate, the training thread's time, and what a step takes.

    python -m bench device
    python -m bench device --megabytes 38.5 --tail
    python -m bench device --part training

The machine's own best is measured as nvbandwidth does: copies one behind the other, between two
events. The rate of a loop's copies is taken while they run, from a profile. The step is a chain of
matrix products that takes as long as asked. With --tail one sample in 100 takes 50 times longer.

The training is resnet18 in bfloat16 on batches of 154 MB, made of pictures by the workers: the
median step of the epochs after the first, the training thread's time in next(), and the first epoch
apart. Each loader trains a model of its own, an epoch in turns; "correct" compares the bits of all
batches with those of torch's loader.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice, repeat
from statistics import median
from typing import Any

import torch

from bench.loaders import LOADERS
from bench.loads.images import SIDE, numbered
from bench.question import Options, Question, flag, number
from bench.questions.device import training
from bench.questions.device.loops import WAYS, on_device, run

_SAMPLE_BYTES = 3 * SIDE * SIDE
_FIRST = 20  # batches that are not counted
_PROFILED = 40
_WAIT_S = 0.001  # a next() that takes longer than this and a cached step's counts as a wait


def _copies(options: Options) -> Iterator[dict]:
    """Yield a row for each loop and size; a row is right if all batches were."""
    if not torch.cuda.is_available():
        sys.exit("bench device needs a GPU of CUDA or HIP, and torch finds none")
    step = _step(options.step_ms)
    for megabytes in options.megabytes:
        batch_size = max(1, round(megabytes * 1e6 / _SAMPLE_BYTES))
        count = (_FIRST + options.batches + _PROFILED) * batch_size
        load = {"dataset": numbered(count, has_tail=options.tail), "batch_size": batch_size}
        load |= {"num_workers": options.workers, "prefetch_factor": 4, "persistent_workers": True}
        batch_bytes = batch_size * _SAMPLE_BYTES
        best, cached_s = _best_rate(batch_bytes), _cached(step, batch_size)
        for name, (kind, more) in WAYS.items():
            with closing(LOADERS[kind](**load, **more)) as loader:
                record = _measure(loader, step, options.batches, batch_bytes)
            times = {"times cached": record["ms per step"] / 1e3 / cached_s}
            of_best = record["GB/s of copies"] / best
            yield {"loop": name, "MB": megabytes, "of the best": of_best, **record, **times}
        print(f"the machine's own best at {megabytes} MB: {best:.1f} GB/s")


def _best_rate(copied_bytes: int, copies: int = 16, samples: int = 5) -> float:
    """GB/s of copies from one pinned buffer, the median of some samples."""
    source = torch.empty(copied_bytes, dtype=torch.uint8, pin_memory=True).fill_(1)
    target = torch.empty_like(source, device="cuda")
    found = []
    for _ in range(samples + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(copies):
            target.copy_(source, non_blocking=True)
        end.record()
        end.synchronize()
        found.append(copies * copied_bytes / begin.elapsed_time(end) / 1e6)
    return median(found[1:])  # the first one warms up


def _step(wanted_ms: float) -> Callable[[torch.Tensor], None]:
    """Make a step that reads the whole batch and then computes for so long."""
    left = torch.rand(2048, 2048, device="cuda")
    out = torch.empty_like(left)
    total = torch.zeros((), device="cuda")

    def multiply(times: int) -> None:
        for _ in range(times):
            torch.mm(left, left, out=out)

    multiply(20)
    torch.cuda.synchronize()
    began = time.perf_counter()
    multiply(50)
    torch.cuda.synchronize()
    times = max(1, round(wanted_ms / ((time.perf_counter() - began) * 1e3 / 50)))

    def step(images: torch.Tensor) -> None:
        total.add_(images.sum(dtype=torch.float32))
        multiply(times)

    return step


def _cached(step: Callable[[torch.Tensor], None], batch_size: int) -> float:
    """Seconds of a step on a batch that stays on the device."""
    images = torch.zeros((batch_size, 3, SIDE, SIDE), dtype=torch.uint8, device="cuda")
    for count in (_FIRST, 100):
        took_s = run(repeat((images,), count), step)["s"]
    return took_s / count


def _measure(
    loader: Any, step: Callable[[torch.Tensor], None], count: int, batch_bytes: int
) -> dict[str, Any]:
    """Run a loop: so many batches without a profiler, for the times, then some more under one."""
    wrong, done = torch.zeros((), device="cuda"), torch.cuda.Event()

    def checked(images: torch.Tensor, labels: torch.Tensor) -> None:
        for corner in (0, -1):
            wrong.add_((images[:, corner, corner, corner].long() != labels % 251).sum())
        step(images)
        # As in a training that reads its loss: not more than one step ahead of the device.
        done.synchronize()
        done.record()

    batches = on_device(loader)
    run(islice(batches, _FIRST), checked)
    found = run(islice(batches, count), checked)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        run(islice(batches, _PROFILED), checked)
    return {
        "GB/s of copies": _PROFILED * batch_bytes / 1e3 / _copies_us(profiler),
        "trainer CPU µs": found["next_cpu_s"] * 1e6,
        "ms per step": found["s"] * 1e3 / count,
        "steps that wait": sum(wait > _WAIT_S for wait in found["waits"]) / count,
        "longest ms": max(found["waits"]) * 1e3,
        "correct": int(wrong) == 0,
    }


def _copies_us(profiler: torch.profiler.profile) -> float:
    """Sum the microseconds in which copies from the host ran, as CUPTI tells."""
    spans = (each.time_range for each in profiler.events() if each.name.startswith("Memcpy HtoD"))
    return max(sum(span.end - span.start for span in spans), 1e-9)


QUESTION = Question(
    {"copies": _copies, "training": training.records},
    {
        "training_batch": number(256, "samples in a batch"),
        "training_steps": number(40, "of an epoch"),
        "training_epochs": number(4, "the first one is apart"),
        "megabytes": {"type": float, "nargs": "+", "default": [4.0, 38.5]},
        "batches": number(200, "of each loop that count"),
        "workers": number(8),
        "step_ms": number(20.0, "on the device"),
        "tail": flag("some samples take long"),
    },
)

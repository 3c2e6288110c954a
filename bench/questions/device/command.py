"""
Ways of batches to a GPU: copy rate, the training thread's time, and what a step takes.

    python -m bench device
    python -m bench device --megabytes 38.5 --picture bench/results/device.png
    python -m bench device --tail
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
from importlib.util import find_spec
from statistics import median

import torch

from bench.loads.images import SIDE, numbered
from bench.question import Options, Question, file, flag, number
from bench.questions.device import training
from bench.questions.device.loops import LOOPS, Batches
from bench.questions.device.profile import Profile, draw

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
        best = _best_rate(batch_size * _SAMPLE_BYTES)
        cached_s = _cached(step, batch_size)
        profiles = {}
        for name, loop in LOOPS.items():
            record, profiles[name] = _measure(loop(**load), step, options.batches, cached_s)
            of_best = record["GB/s of copies"] / best
            yield {"loop": name, "MB": megabytes, "of the best": of_best, **record}
        print(f"the machine's own best at {megabytes} MB: {best:.1f} GB/s")
        if options.picture and find_spec("matplotlib"):
            draw(profiles, options.picture.with_stem(f"{options.picture.stem}_{megabytes:g}"))


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
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(count):
            step(images)
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / count


def _measure(
    batches: Batches, step: Callable[[torch.Tensor], None], count: int, cached_s: float
) -> tuple[dict, Profile]:
    """Run a loop: so many batches without a profiler, for the times, then some more under one."""
    wrong = torch.zeros((), device="cuda")
    waits: list[float] = []
    cpu_s = 0.0
    done = torch.cuda.Event()

    def one() -> int:
        nonlocal cpu_s
        began, cpu = time.perf_counter(), time.thread_time()
        images, labels = next(batches)
        cpu_s += time.thread_time() - cpu
        waits.append(time.perf_counter() - began)
        wrong.add_((images[:, 0, 0, 0].long() != labels % 251).sum())
        wrong.add_((images[:, -1, -1, -1].long() != labels % 251).sum())
        step(images)
        # As in a training that reads its loss: not more than one step ahead of the device.
        done.synchronize()
        done.record()
        return int(images.numel())

    for _ in range(_FIRST):
        one()
    torch.cuda.synchronize()
    waits.clear()
    cpu_s = 0.0
    began = time.perf_counter()
    for _ in range(count):
        one()
    torch.cuda.synchronize()
    step_s = (time.perf_counter() - began) / count
    waited, trainer_us = list(waits), cpu_s * 1e6 / count
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        moved_bytes = sum(one() for _ in range(_PROFILED))
        torch.cuda.synchronize()
    batches.close()  # type: ignore[attr-defined]
    profile = Profile.read(profiler)
    record = {
        "GB/s of copies": profile.rate(moved_bytes),
        "trainer CPU µs": trainer_us,
        "ms per step": step_s * 1e3,
        "times cached": step_s / cached_s,
        "device idle": profile.idle_share,
        "steps that wait": sum(wait > _WAIT_S for wait in waited) / len(waited),
        "longest ms": max(waited) * 1e3,
        "correct": int(wrong) == 0,
    }
    return record, profile


QUESTION = Question(
    {
        "copies": _copies,
        "training": training.records,
    },
    {
        "training_batch": number(256, "samples in a batch"),
        "training_steps": number(40, "of an epoch"),
        "training_epochs": number(4, "the first one is apart"),
        "megabytes": {"type": float, "nargs": "+", "default": [4.0, 38.5]},
        "batches": number(200, "of each loop that count"),
        "workers": number(8),
        "step_ms": number(20.0, "on the device"),
        "tail": flag("some samples take long"),
        "picture": file("timelines, by matplotlib"),
    },
)

"""
The loads, and one run of one in this process, which may be killed for its memory.

What a program reads with torch's loader, and the cure that it can have with ours: batches are the
same in every bit, so a digest compares them. The memory is looked at from outside.
"""

import hashlib
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from bench.loaders import opened
from bench.loads import images, jpegs
from bench.loads.leaks import leaking
from bench.loads.records import annotations, figures
from shmloader import SharedList, cached

_CACHE_ROOM = 1.1  # times the pixels: what describes a sample is kept too
_LASTING = {"persistent_workers": True, "shuffle": True}


@dataclass(frozen=True)
class Load:
    """
    What is loaded, by programs with torch's loader and by ours.

    Attributes:
        grows, cure: What takes the memory, and what is changed besides the loader, in a table.
        plain, cured: Make the dataset, of so many samples; no `cured`: the cure is in `ours`.
        step_s: What each step of the training waits for.
        options: Of both loaders; ours: of ours alone, with the cure.
    """

    grows: str
    cure: str
    plain: Callable[[int], Any]
    cured: Callable[[int], Any] | None
    samples: int
    batch: int
    workers: int
    epochs: int = 1
    step_s: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)
    ours: dict[str, Any] = field(default_factory=dict)


_LEAK = "5 MB that each sample leaves"
LOADS = {
    "annotations": Load(
        "a list of annotations",
        "`SharedList`",
        lambda count: figures(list(annotations(count)), count),
        lambda count: figures(SharedList(annotations(count)), count),
        samples=60_000, batch=256, workers=8, epochs=2, step_s=0.01, options=_LASTING,
    ),
    "pictures": Load(
        "pictures that each worker keeps",
        "`cached()`",
        jpegs.kept_by_each,
        lambda count: cached(
            jpegs.pictures(count), int(count * jpegs.PICTURE_BYTES * _CACHE_ROOM)
        ),
        samples=1536, batch=64, workers=4, epochs=4, options=_LASTING,
    ),
    "leak": Load(
        _LEAK,
        "`worker_bytes`",
        lambda count: leaking(count, None, 0.02),  # so that a worker takes seconds for too much
        None,
        samples=600, batch=8, workers=2, ours={"worker_bytes": 200_000_000},
    ),
    "batches": Load(
        "batches of 38.5 MB that are ahead",
        "",
        lambda count: images.numbered(count, torch.float32),
        None,
        samples=64 * 40, batch=64, workers=4, step_s=0.06, options={"prefetch_factor": 8},
    ),
}  # fmt: skip
GROWTH = {
    name: Load(
        _LEAK, "`worker_bytes`", lambda count, most=most: leaking(count, most), None, 1600, 8, 2,
        ours={"worker_bytes": 1_000_000_000},
    )
    for name, most in (("no growth", 0), ("growth", None))
}  # fmt: skip


def run(name: str, loader: str, cure: bool, part: float = 1.0, workers: int | None = None) -> dict:
    """
    Load a load. Returns the digest of all batches, the seconds, and how many workers were replaced.

    Args:
        part: Of the load's samples.
        workers: Instead of the load's.
    """
    warnings.simplefilter("ignore")  # a cache that is made smaller
    load = (LOADS | GROWTH)[name]
    dataset = ((cure and load.cured) or load.plain)(int(load.samples * part))
    options = load.options | (load.ours if cure and loader == "ours" else {})
    options |= {"num_workers": workers or load.workers}
    order = torch.Generator().manual_seed(1)
    digest = hashlib.sha256()
    begin = time.perf_counter()
    with opened(loader, dataset, load.batch, generator=order, **options) as loaded:
        for _ in range(load.epochs):
            for batch in loaded:
                for leaf in batch if isinstance(batch, list) else [batch]:
                    digest.update(leaf.numpy())
                time.sleep(load.step_s)
        seconds, replaced = time.perf_counter() - begin, 0
        if loader == "ours":
            replaced = loaded.stats().replaced
    return {"digest": digest.hexdigest(), "seconds": seconds, "replaced": replaced}

"""
What others publish of their loaders, played again here: theirs, torch's and ours in turns.

    python -m bench claims
    python -m bench claims --claim arena --rounds 5     those whose names have that in them

The first epoch compares every batch whole, in torch's order where one is promised; three more are
timed, in which a strided sample of each batch is read and compared afterwards; without an order the
batches are counted. The CPU is that of the trainer's process. docs/peers.md says who claims what. A
way whose package is not installed is left out: `make .venv/peers` installs them, and dataloader-rs
needs Python 3.13.
"""

import importlib
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from bench.driver import in_turns, middle, missing, mistakes, ratio, runnable, tried
from bench.loaders import LOADERS
from bench.loads import Made, as_it_is
from bench.loads.costs import Cost, Samples
from bench.measure import measure
from bench.question import Options, Question, number

_OURS, _TORCH = "shmloader", "torch"
_EPOCHS = 3
_LONGEST_S = 400
_NEEDS = {"SPDL pool": "spdl.pipeline", "dataloader-rs": "dataloader_rs"}
_NO_ORDER = ("torch, in no order", "MinatoLoader's way")  # the ways that promise none


class Claim(NamedTuple):
    """
    A load whose figures another project has published.

    Attributes:
        batches: Of an epoch.
        free: The samples at no cost.
        options: Of torch's loader, and of ours.
        ways: What makes each loader: batches, epoch after epoch, and a `close()`.
    """

    batches: int
    free: Made
    options: dict[str, Any]
    ways: dict[str, Callable[[], Any]]

    def expected(self) -> DataLoader:
        """Return the batches as torch's loader has them."""
        collate = self.options.get("collate_fn")
        return DataLoader(self.free, self.options["batch_size"], collate_fn=collate)


def _claim(
    batches: int,
    dataset: Any,
    free: Made,
    options: dict[str, Any],
    ours: dict[str, Any] | None = None,
    **others: Callable[[], Any],
) -> Claim:
    """Describe a claim; ours: more of our options."""
    mine, theirs = (partial(_living, name, dataset, **options) for name in ("ours", "torch"))
    ways = {_OURS: partial(mine, **(ours or {})), _TORCH: theirs, **others}
    return Claim(batches, free, options, ways)


def _living(name: str, dataset: Any, **options: Any) -> Any:
    """Make a loader whose workers live on."""
    return LOADERS[name](dataset, persistent_workers=True, **options)


class Each:
    """
    Another project's loader, whose batches are made into those of torch.

    Args:
        loader: The loader; each iteration is an epoch.
        restore: Makes the batch.
        close: Ends the loader, if it must be told.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        restore: Callable[[Any], Any] = as_it_is,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._loader, self._restore, self.close = loader, restore, close

    def __iter__(self):
        for batch in self._loader:
            yield self._restore(batch)
            del batch  # before the next one is asked for


# Arrays of 32 MiB, handed over as fast as one process can. SPDL's own are zeros; each of ours has
# its number.

_BYTES, _ITEMS, _AHEAD = 32 << 20, 16, 2


class Payloads(IterableDataset):
    """
    Items of one array or tensor.

    Arrays are made beforehand, as in SPDL's benchmark, but tensors anew each time, because torch
    keeps a tensor that was sent once in shared memory.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._made: list = []

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self._kind == "numpy" and not self._made:
            self._made = [_item(self._kind, place) for place in range(_ITEMS)]
        for place in range(_ITEMS):
            yield self._made[place] if self._made else _item(self._kind, place)


def _item(kind: str, place: int) -> dict[str, Any]:
    if kind == "numpy":
        return {"data": np.full((_BYTES // 4,), float(place), dtype=np.float32)}
    return {"data": torch.full((_BYTES // 4,), float(place), dtype=torch.float32)}


def _pool(kind: str) -> Each:
    pipeline = importlib.import_module("spdl.pipeline")
    # Theirs: as many segments as an epoch has items, and two.
    arena = pipeline.SharedMemorySegmentPool(segment_size=2 * _BYTES, count=_ITEMS + 2)
    built = pipeline.PipelineBuilder().add_source(Payloads(kind)).add_sink(buffer_size=_AHEAD)
    source = pipeline.run_pipeline_in_subprocess(
        built.get_config(), num_threads=1, arena=arena, buffer_size=_AHEAD
    )
    return Each(source, close=source._shutdown)  # it leaves that to the collector


def _arena(kind: str) -> Claim:
    options = {"batch_size": None, "collate_fn": as_it_is, "num_workers": 1}
    options["prefetch_factor"] = _AHEAD
    free, spdl = Made(_ITEMS, partial(_item, kind)), {"SPDL pool": partial(_pool, kind)}
    return _claim(_ITEMS, Payloads(kind), free, options, **spdl)


# 16 pictures with 7 small tensors each: 114 objects in 65.8 MB.

_SIDES = (560, 565)


@cache
def _picture(number: int) -> torch.Tensor:
    height, width = _SIDES
    return torch.arange(3 * height * width, dtype=torch.float32).reshape(3, *_SIDES) + number


def _sample(index: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    boxes, size = torch.arange(20, dtype=torch.float32).reshape(5, 4) + index, torch.tensor(_SIDES)
    return _picture(index % 8), {
        "boxes": boxes,
        "labels": torch.arange(5) + index,
        "image_id": torch.tensor([index]),
        "area": boxes[:, 2] * boxes[:, 3],
        "iscrowd": torch.zeros(5, dtype=torch.int64),
        "orig_size": size,
        "size": size.clone(),
    }


def _collated(samples: list) -> Any:
    """Collate as detectors do: pictures and a mask of their padding, and a list of targets."""
    pictures = torch.stack([picture for picture, _ in samples])
    mask = torch.zeros(len(samples), *_SIDES, dtype=torch.bool)
    return pictures, mask, [target for _, target in samples]


def _packed(samples: list) -> Any:
    """Collate so, and put the targets' tensors together, field by field."""
    pictures, mask, targets = _collated(samples)
    lengths = {name: [len(each[name]) for each in targets] for name in targets[0]}
    return pictures, mask, {n: torch.cat([t[n] for t in targets]) for n in lengths}, lengths


def _unpacked(batch: Any) -> Any:
    pictures, mask, fields, lengths = batch
    apart = {name: fields[name].split(lengths[name]) for name in fields}
    targets = [dict(zip(apart, each, strict=True)) for each in zip(*apart.values(), strict=True)]
    return pictures, mask, targets


def _objects() -> Claim:
    dataset, options = Made(16 * 16, _sample), {"batch_size": 16, "num_workers": 2}

    def packed_by_hand() -> Each:
        loader = _living("torch", dataset, collate_fn=_packed, **options)
        return Each(loader, _unpacked, loader.close)

    collated = {**options, "collate_fn": _collated}
    return _claim(16, dataset, dataset, collated, **{"torch, packed by hand": packed_by_hand})


# Samples that wait, as for an object store, and compute nothing. ConcurrentDataloader is not on
# PyPI, so its way is here what a dataset of one's own can do.

_WIDTH = 64


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(16)


class ByThreads(Made):
    """Samples of which those of a batch are fetched at the same time."""

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return list(_threads().map(self.__getitem__, indices))


def _latency() -> Claim:
    count, options = 32 * 12, {"batch_size": 32, "num_workers": 2}
    waiting, free = (Samples(cost, count, _WIDTH) for cost in (Cost(0.020), Cost()))
    theirs = partial(_living, "torch", ByThreads(count, waiting.__getitem__), **options)
    loads, ways = (waiting, free), {"threads in each worker": theirs}
    return _claim(12, *loads, options, {"fetch_threads": 16}, **ways)


# Samples of which one in five takes much longer. MinatoLoader's class puts one sample after another
# into a queue, and the trainer makes batches of what comes; so does its way here, without its code,
# which needs CUDA.

_LOTS, _LOT, _WORKERS = 40, 4, 4


class Queued:
    """Processes that put samples into one queue, and batches of those that come first."""

    def __init__(self, cost: Cost) -> None:
        self._pool = multiprocessing.get_context("fork").Pool(_WORKERS)
        self._make = partial(_numbers, cost)

    def __iter__(self):
        came = self._pool.imap_unordered(self._make, range(_LOTS * _LOT))
        for _ in range(_LOTS):
            yield torch.stack([torch.from_numpy(next(came)) for _ in range(_LOT)])

    def close(self) -> None:
        """End the processes."""
        self._pool.terminate()
        self._pool.join()


def _numbers(cost: Cost, index: int) -> np.ndarray:
    return cost.row(index, _WIDTH).numpy()


def _tails(times: int) -> Claim:
    cost = Cost(0.003, slow_s=0.003 * (times - 1), every=5, scattered=True)
    dataset, free = (Samples(each, _LOTS * _LOT, _WIDTH) for each in (cost, Cost()))
    options = {"batch_size": _LOT, "num_workers": _WORKERS, "prefetch_factor": 4}
    theirs = partial(_living, "torch", dataset, in_order=False, **options), partial(Queued, cost)
    ways = dict(zip(_NO_ORDER, theirs, strict=True))
    return _claim(_LOTS, dataset, free, options, {"assignment": "dynamic"}, **ways)


# Workers that are threads in Rust, whose batches numpy's `stack` collates.


def _nothing(index: int) -> np.ndarray:
    return np.full(16, index, dtype=np.float32)


def _waiting(index: int) -> np.ndarray:
    time.sleep(0.002)
    return _nothing(index)


def _array(index: int) -> np.ndarray:
    """Do to a picture what augmentation does: to float, normalised, flipped."""
    picture = np.full((3, 128, 128), index % 251, dtype=np.uint8).astype(np.float32)
    picture -= 120.0
    picture /= 60.0
    return np.ascontiguousarray(picture[:, :, :: 1 - 2 * (index % 2)])


def _rust(make: Callable[[int], Any], count: int, at_once: int) -> Each:
    module = importlib.import_module("dataloader_rs")

    class Samples(module.PyDataset):
        def __len__(self) -> int:
            return count

        def __getitem__(self, index: int) -> Any:
            return make(index)

    options = {"num_workers": 2, "items_in_parallel": at_once}
    return Each(
        module.PyDataloader(Samples(), 32, collate_fn=np.stack, **options), torch.from_numpy
    )


def _rusty(make: Callable[[int], Any], batches: int, at_once: int = 1) -> Claim:
    dataset, free = Made(32 * batches, make), _nothing if make is _waiting else make
    options, ours = {"batch_size": 32, "num_workers": 2}, {"fetch_threads": at_once}
    ways = {"dataloader-rs": partial(_rust, make, 32 * batches, at_once)}
    more = ours if at_once > 1 else {}
    return _claim(batches, dataset, Made(32 * batches, free), options, more, **ways)


CLAIMS = {
    "arena, ndarrays": _arena("numpy"),
    "arena, tensors": _arena("torch"),
    "114 objects": _objects(),
    "20 ms a sample": _latency(),
    "one in five takes 6 times longer": _tails(6),
    "one in five takes 20 times longer": _tails(20),
    "threads, samples of nothing": _rusty(_nothing, 400),
    "threads, 2 ms a sample": _rusty(_waiting, 60, 16),
    "threads, arrays": _rusty(_array, 60),
}


def run(claim: str, way: str) -> dict:
    """Read a load, in one way."""
    load = CLAIMS[claim]
    found = measure(load.ways[way], load, _EPOCHS, way not in _NO_ORDER)
    return {"rate": 1e3 / found["ms_per_batch"], **found}


def _records(options: Options) -> Iterator[dict]:
    """Yield a row for each claim and way."""
    for name, claim in CLAIMS.items():
        if not any(part in name for part in options.claim or [""]):
            continue
        ways = runnable(claim.ways, lambda way: missing(_NEEDS.get(way, "torch")), "none runs here")
        found = in_turns(
            ways, options.rounds, lambda way, name=name: tried(partial(run, name, way), _LONGEST_S)
        )
        for way, runs in found.items():
            rate, megabytes = middle(runs, "rate") or 0.0, middle(runs, "batch_mb") or 0.0
            yield {
                "claim": name,
                "way": way,
                "batches/s": rate,
                "MB/s": rate * megabytes if name.startswith("arena") else None,
                "trainer's CPU, ms a batch": middle(runs, "trainer_cpu_ms"),
                "times torch": ratio(runs, found[_TORCH], "rate"),
                "mistakes": mistakes({way: runs}),
            }


QUESTION = Question(
    _records,
    {
        "claim": {"action": "append", "metavar": "PART", "help": "of a claim's name"},
        "rounds": number(3),
    },
)

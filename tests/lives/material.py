"""The datasets and samplers of the cases, and loaders over them."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy
import torch
import torch.utils.data
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    get_worker_info,
)

import shmloader
from tests.lives.case import LISTS, Case, Data

_LIST = 3  # samples in a batch of a sampler of batches
_kept: list[Any] = []

Sample = dict[str, torch.Tensor]


class Source:
    """
    Makes samples: a row of index, draws and count, and a payload that tells if it is damaged.

    Args:
        data: What samples are like.
        draws_rng: Draw from `shmloader.rng()` too.
        stacks: The samples of a batch are stacked, so they are of one shape.
    """

    def __init__(self, data: Data, draws_rng: bool, stacks: bool) -> None:
        self.data = data
        self.draws_rng = draws_rng
        self.stacks = stacks
        self.count = 0

    def sample(self, index: int, number: int | None = None) -> Sample:
        """Make a sample; number: what the row says instead of its index."""
        data = self.data
        if index == data.raises:
            raise LookupError(f"sample {index}")
        if get_worker_info() is not None:
            if data.wait_ms:
                time.sleep(data.wait_ms / (1 if index % 8 == 0 else 4) / 1000)
            if data.leak_bytes:
                _kept.append(numpy.ones(data.leak_bytes, numpy.uint8))
        self.count += 1
        drawn = [torch.rand(()).item(), random.random(), numpy.random.rand()]
        own = shmloader.rng().random() if self.draws_rng else 0.0
        number = index if number is None else number
        row = torch.tensor([number, *drawn, own, self.count], dtype=torch.float64)
        width = data.width if self.stacks else width_of(data, number)
        return {"row": row, "payload": torch.full((width,), number, dtype=torch.float32)}


def width_of(data: Data, number: int) -> int:
    """Returns how many numbers the payload of a sample has that is not stacked."""
    return data.width * (1 + number % 3)


class Map(Source, Dataset):
    """Samples by index."""

    def __len__(self) -> int:
        return self.data.samples

    def __getitem__(self, index: int) -> Sample:
        return self.sample(index)


class Getitems(Map):
    """Samples by their indices."""

    def __getitems__(self, indices: list[int]) -> list[Sample]:
        return [self.sample(index) for index in indices]


class Stateful(Map):
    """The count is part of its state."""

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def _shard(samples: int) -> range:
    info = get_worker_info()
    return range(samples) if info is None else range(info.id, samples, info.num_workers)


class Stream(Source, IterableDataset):
    """Each worker yields its share, each epoch the same."""

    def __iter__(self) -> Iterator[Sample]:
        for index in _shard(self.data.samples):
            yield self.sample(index)


class Sized(Stream):
    """It has a length too."""

    def __len__(self) -> int:
        return self.data.samples


class Counting(Stream):
    """Counts its epochs, and its state is epoch and place."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.epoch = self.at = 0

    def __iter__(self) -> Iterator[Sample]:
        shard = _shard(self.data.samples)
        while self.at < len(shard):
            self.at += 1
            index = shard[self.at - 1]
            yield self.sample(index, 1000 * self.epoch + index)
        self.epoch, self.at = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "at": self.at, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.at, self.count = state["epoch"], state["at"], state["count"]


class Place:
    """An iterator that has a state of its own."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.at = stream, 0
        self.shard = _shard(stream.data.samples)

    def __iter__(self) -> Iterator[Sample]:
        return self

    def __next__(self) -> Sample:
        if self.at >= len(self.shard):
            raise StopIteration
        self.at += 1
        return self.stream.sample(self.shard[self.at - 1])

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Following(Stream):
    """Its iterator has a state."""

    def __iter__(self) -> Iterator[Sample]:
        return Place(self)


_DATASETS = {
    "map": Map,
    "getitems": Getitems,
    "stateful": Stateful,
    "subset": Map,
    "iterable": Stream,
    "sized": Sized,
    "counting": Counting,
    "following": Following,
}


class Lists(Sampler):
    """Batches of one to three samples, in an order of its own."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[list[int]]:
        order = [index * 7 % self.samples for index in range(self.samples)]
        while order:
            size = 1 + len(order) % _LIST
            yield order[:size]
            order = order[size:]


class Remembering(Sampler):
    """Another order each epoch, and a state that says where it is."""

    def __init__(self, samples: int, size: int | None = None) -> None:
        self.samples, self.size = samples, size
        self.epoch = self.at = 0

    def __iter__(self) -> Iterator[Any]:
        order = numpy.random.default_rng(self.epoch).permutation(self.samples).tolist()
        while self.at < len(order):
            begin = self.at
            self.at += self.size or 1
            yield order[begin] if self.size is None else order[begin : self.at]
        self.epoch, self.at = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.at = state["epoch"], state["at"]


def as_list(samples: Any) -> Any:
    """Collate: the samples as they are."""
    return samples


def draws(worker: int) -> None:
    """Set up a worker: one draw more, so that a replacement that is set up again would differ."""
    torch.rand(worker + 1)
    random.random()


_NAMED = {"list": as_list, "draws": draws}


def open_dataset(case: Case) -> Any:
    """Make the dataset of a case."""
    data = case.data
    stacks = case.torch.get("collate_fn") != "list" and case.torch.get("batch_size", 1) is not None
    draws_rng = case.ours.get("seed_by") == "batch" and not case.is_iterable
    dataset = _DATASETS[data.kind](data, draws_rng, stacks)
    if data.kind == "subset":
        return Subset(dataset, list(reversed(range(data.samples))))
    return dataset


def _sampling(case: Case, dataset: Any, seed: int) -> dict[str, Any]:
    """Returns the arguments that say how a case draws its samples."""
    own = torch.Generator().manual_seed(seed)
    samples = case.data.samples
    chosen = {
        "sequential": dict,
        "shuffled": lambda: {"shuffle": True},
        "generator": lambda: {"shuffle": True, "generator": own},
        "own": lambda: {"sampler": RandomSampler(dataset, generator=own)},
        "replacement": lambda: {
            "sampler": RandomSampler(dataset, replacement=True, num_samples=50, generator=own)
        },
        "drop_last": lambda: {
            "batch_sampler": BatchSampler(RandomSampler(dataset, generator=own), _LIST, True)
        },
        "lists": lambda: {"batch_sampler": Lists(samples)},
        "ranks": lambda: {"sampler": DistributedSampler(dataset, 2, seed % 2, seed=3)},
        "ranks in order": lambda: {"sampler": DistributedSampler(dataset, 2, 1, shuffle=False)},
        "stateful": lambda: {"sampler": Remembering(samples)},
        "stateful lists": lambda: {"batch_sampler": Remembering(samples, _LIST)},
    }
    return chosen[case.sampler]()


def open_loader(case: Case, is_ours: bool, generation: int = 0, **changes: Any) -> Any:
    """
    Make the loader of a case.

    Args:
        is_ours: Of this project's class; otherwise of torch's.
        generation: Other generators' seeds: a resumed loader has to find its own in the state.
        changes: Arguments and options to change.
    """
    dataset = open_dataset(case)
    given = {**case.torch, **(case.ours if is_ours else {}), **changes}
    given.update(_sampling(case, dataset, case.seed % 1000 + 1000 * generation))
    if case.sampler in LISTS:
        given.pop("batch_size", None)
        given.pop("drop_last", None)
    for name in ("collate_fn", "worker_init_fn"):
        if isinstance(given.get(name), str):
            given[name] = _NAMED[given[name]]
    kind = shmloader.DataLoader if is_ours else torch.utils.data.DataLoader
    return kind(dataset, **given)


def plain(batch: Any, case: Case) -> Any:
    """Turn a batch into the rows of its samples; each says if the payload is damaged."""
    if isinstance(batch, list):
        rows = [_row(sample["row"], sample["payload"], case, False) for sample in batch]
    elif batch["row"].ndim == 1:
        rows = [_row(batch["row"], batch["payload"], case, False)]
    else:
        pairs = zip(batch["row"], batch["payload"], strict=True)
        rows = [_row(row, payload, case, True) for row, payload in pairs]
    return tuple(rows)


def _row(row: torch.Tensor, payload: torch.Tensor, case: Case, stacked: bool) -> Any:
    numbers = copy.copy(row).tolist()
    width = case.data.width if stacked else width_of(case.data, int(numbers[0]))
    is_whole = len(payload) == width and bool((payload == numbers[0]).all())
    return (*numbers, is_whole)


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell a DistributedSampler its epoch."""
    if isinstance(loader.sampler, DistributedSampler):
        loader.sampler.set_epoch(epoch)

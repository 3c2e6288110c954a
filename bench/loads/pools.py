"""
The transport workloads: fetching costs next to nothing, what is left is collate and transport.

bench/README.md says how large a list of samples is; for tabular that counts the tensor objects. Its
length shares no factor with the batch size, so batches differ although long epochs pass over it
again.
"""

import gc
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from bench.loads import as_columns, as_it_is

SEED = 20250


@dataclass(frozen=True)
class Workload:
    """
    One workload: what a sample is, and how many make a batch and an epoch.

    Args:
        build: Makes a list of `pool_size` distinct samples, by a seeded generator.
        collate_fn: The user's own collate function; None is torch's default.
    """

    name: str
    batch_size: int
    batches: int
    pool_size: int
    build: Callable[[np.random.Generator, int], list]
    collate_fn: Callable | None = None

    def dataset(self) -> "PoolDataset":
        """Return the dataset of one epoch; the pool behind it is built once per process."""
        return PoolDataset(self.name, self.batch_size * self.batches)

    def expected(self) -> DataLoader:
        """Return the batches as torch's loader has them, made in this process."""
        return DataLoader(self.dataset(), self.batch_size, collate_fn=self.collate_fn)

    def requests(self) -> list[range]:
        """Return the indices of each batch, in the order in which every contender gets them."""
        size = self.batch_size
        return [range(turn * size, (turn + 1) * size) for turn in range(self.batches)]


class PoolDataset(Dataset):
    """Map-style samples in a list; pickles as name and length, for the same pool anew."""

    def __init__(self, name: str, length: int):
        pool = sample_pool(name)
        self._name = name
        self._samples = (pool * math.ceil(length / len(pool)))[:length]

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int):
        return self._samples[index]

    def __reduce__(self):
        return PoolDataset, (self._name, len(self._samples))


@cache
def sample_pool(name: str) -> list:
    """Build the samples of a workload and take them out of the garbage collector's sight."""
    workload = WORKLOADS[name]
    pool = workload.build(np.random.default_rng(SEED), workload.pool_size)
    gc.freeze()  # a collection in a forked worker would copy every page of the list
    return pool


def workload(name: str, batches: int | None = None) -> Workload:
    """Look a workload up by name, with another number of batches per epoch if one is given."""
    found = WORKLOADS[name]
    return found if batches is None else replace(found, batches=batches)


def pad_tokens(samples: list) -> dict:
    """Pad token rows to the longest one, as a language model's collate function does."""
    tokens, labels = zip(*samples, strict=True)
    lengths = torch.tensor([len(row) for row in tokens])
    input_ids = pad_sequence(tokens, batch_first=True)
    return {
        "input_ids": input_ids,
        "attention_mask": torch.arange(input_ids.shape[1]) < lengths[:, None],
        "labels": torch.tensor(labels),
    }


def join_graphs(samples: list) -> dict:
    """Join graphs to one, as PyTorch Geometric does: each one's edges count from its first node."""
    nodes, edges, labels = zip(*samples, strict=True)
    counts = torch.tensor([len(each) for each in nodes])
    firsts = (counts.cumsum(0) - counts).tolist()
    moved = [each + first for each, first in zip(edges, firsts, strict=True)]
    return {
        "x": torch.cat(nodes),
        "edge_index": torch.cat(moved, 1),
        "batch": torch.arange(len(samples)).repeat_interleave(counts),
        "y": torch.tensor(labels),
    }


def _floats(generator, count: int, *shape: int) -> tuple:
    values = torch.from_numpy(generator.random((count, *shape), dtype=np.float32))
    return values.unbind(0)


def _bytes(generator, count: int, *shape: int) -> tuple:
    values = generator.integers(0, 256, (count, *shape), dtype=np.uint8)
    return torch.from_numpy(values).unbind(0)


def _labelled(make: Callable, shape: tuple[int, ...], generator, count: int) -> list:
    return list(zip(make(generator, count, *shape), range(count), strict=True))


def _arrays(shape: tuple[int, ...], generator, count: int) -> list:
    return list(generator.random((count, *shape)))


def _atari(generator, count: int) -> list:
    before, after = (_bytes(generator, count, 4, 84, 84) for _ in range(2))
    keys = ("observation", "next_observation", "reward", "action")
    rewards = generator.random(count).tolist()
    rows = zip(before, after, rewards, range(count), strict=True)
    return [dict(zip(keys, row, strict=True)) for row in rows]


def _tabular(generator, count: int) -> list:
    dense = _floats(generator, count, 13)
    categories = torch.from_numpy(generator.integers(0, 1 << 20, (count, 26))).unbind(0)
    return list(zip(dense, categories, generator.random(count).tolist(), strict=True))


def _text(generator, count: int) -> list:
    lengths = generator.integers(16, 512, count)
    tokens = torch.from_numpy(generator.integers(1, 50_000, int(lengths.sum())))
    return list(zip(tokens.split(lengths.tolist()), range(count), strict=True))


def _ragged(generator, count: int) -> list:
    return [tokens for tokens, _ in _text(generator, count)]


def _detection(generator, count: int) -> list:
    images = _floats(generator, count, 3, 128, 128)
    boxes = generator.integers(1, 21, count)
    targets = [
        {
            "boxes": torch.from_numpy(generator.random((number, 4), dtype=np.float32)),
            "labels": torch.from_numpy(generator.integers(0, 91, number)),
            "image_id": place,
        }
        for place, number in enumerate(boxes)
    ]
    return list(zip(images, targets, strict=True))


def _graphs(generator, count: int) -> list:
    sizes = generator.integers(20, 61, count).tolist()
    nodes = torch.from_numpy(generator.random((sum(sizes), 16), dtype=np.float32)).split(sizes)
    edges = [torch.from_numpy(generator.integers(0, size, (2, 4 * size))) for size in sizes]
    return list(zip(nodes, edges, range(count), strict=True))


WORKLOADS = {
    each.name: each
    for each in (
        Workload("tiny", 1, 500, 100_003, partial(_labelled, _floats, (8,))),
        Workload("cifar", 128, 200, 32_771, partial(_labelled, _bytes, (3, 32, 32))),
        Workload("atari", 32, 120, 2_053, _atari),
        Workload("tabular", 4096, 50, 40_961, _tabular),
        Workload("text", 64, 200, 32_771, _text, pad_tokens),
        Workload("ragged", 64, 200, 32_771, _ragged, as_it_is),
        Workload("detection", 16, 100, 521, _detection, as_columns),
        Workload("graphs", 64, 200, 8_209, _graphs, join_graphs),
        Workload("imagenet", 64, 28, 521, partial(_labelled, _floats, (3, 224, 224))),
        Workload("video", 32, 16, 101, partial(_labelled, _floats, (8, 3, 224, 112))),
        Workload("list_small", 128, 120, 8_209, partial(_arrays, (10, 150)), as_it_is),
        Workload("list_large", 128, 8, 257, partial(_arrays, (1000, 150)), as_it_is),
    )
}

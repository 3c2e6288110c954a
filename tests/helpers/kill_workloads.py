"""
Epochs that pass every step of the protocol, and the hash of each of their batches.

Together they have grants and refusals, copies of every kind, spilled, kept and held batches,
segments used again, persistent workers, and pages that come in several pieces.
"""

import collections
import itertools
import mmap
import os
import signal
import time
import zlib
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

from shmloader import DataLoader, cached
from shmloader.errors import BatchTooLarge

PAUSE_S = 0.02  # long enough for an idle process to park

kept = []  # by a worker, for as long as it lives


class Samples(Dataset):
    """
    Samples of every native kind, `row_bytes` each beside some numbers, with a random draw in each.
    """

    def __init__(self, row_bytes):
        self.row_bytes = row_bytes

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        if index == 1:
            time.sleep(PAUSE_S)  # the trainer parks
        return {
            "row": torch.full((self.row_bytes,), index % 251, dtype=torch.uint8),
            "draw": torch.rand(3),
            "pair": torch.tensor([index, -index], dtype=torch.int32),
            "index": index,
            "share": index / 8,
            "name": f"sample {index}",
        }


class Mortal(Samples):
    """Samples of which one kills the first worker that fetches it."""

    def __init__(self, row_bytes, last):
        super().__init__(row_bytes)
        self.last = last
        self._died = mmap.mmap(-1, mmap.PAGESIZE)  # shared by all processes that are forked

    def begin(self):
        """Let a worker die again."""
        self._died[0] = 0

    def __getitem__(self, index):
        if index == self.last and not self._died[0]:
            self._died[0] = 1
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Partly(Samples):
    """Samples of which one has a part that cannot be pickled."""

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        return {**sample, "function": lambda: None} if index == 3 else sample


class Cached(Dataset):
    """Samples that are kept when they were fetched, in a cache of each run's own."""

    def __init__(self, samples):
        self.samples = samples
        self.cached = None

    def begin(self):
        """Keep nothing yet; a cache that was made before is closed."""
        cached(self.samples, 16 << 20).close()
        self.cached = cached(self.samples, 16 << 20, without_function)

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.cached[index]


class Stream(IterableDataset):
    """Each worker yields a few samples, the first worker fewer."""

    def __iter__(self):
        number = get_worker_info().id
        yield from (torch.tensor([number, i]) + torch.rand(2) for i in range(3 + 2 * number))


def without_function(sample):
    """Take away what cannot be sent."""
    return {name: value for name, value in sample.items() if name != "function"}


def with_copy(samples):
    """Collate; a part of the batch lies outside of the slot, and a part travels as a pickle."""
    batch = default_collate(samples)
    return {**batch, "copy": batch["row"].flip(1), "set": {len(samples)}}


def keeping(samples):
    """Collate, and keep an alias of every third batch."""
    batch = default_collate(samples)
    if batch["index"][0].item() % 6 == 0:
        kept.append(batch["row"])
    return batch


def in_rows(*sizes):
    """Make a batch sampler: batches of these sizes, of samples in order."""
    numbers = itertools.count()
    return [list(itertools.islice(numbers, size)) for size in sizes]


@dataclass(frozen=True)
class Workload:
    """
    A way of using a loader.

    Attributes:
        arguments: The loader's.
        batches: How many an epoch has, those that are errors too.
        epochs: How many are iterated.
        taken: How many batches are taken of each epoch but the last, which is whole.
        held: How many of the newest batches stay alive.
    """

    arguments: dict[str, Any]
    batches: int
    epochs: int = 1
    taken: int = 1 << 20
    held: int = 3

    def loader(self, **options):
        """Make the loader."""
        common = {"num_workers": 2, "multiprocessing_context": "fork"}
        return DataLoader(**{**common, **self.arguments, **options})

    def begin(self):
        """Make everything as it was before any run."""
        if isinstance(self.arguments["dataset"], Mortal | Cached):
            self.arguments["dataset"].begin()

    def run(self, loader, digests, after_last):
        """
        Iterate all epochs.

        Args:
            digests: A list that gets a number for each batch; equal batches have equal numbers.
            after_last: Called after the last batch that is taken of an epoch.

        Returns:
            The batches that are held at the end, to be dropped after the loader's close.
        """
        for epoch in range(self.epochs):
            held = None
            torch.manual_seed(epoch)
            last = epoch == self.epochs - 1
            count = self.batches if last else self.taken
            held = self._run_epoch(iter(loader), count, digests, after_last)
        return held

    def _run_epoch(self, iterator, count, digests, after_last):
        held = collections.deque(maxlen=self.held)
        taken = min(count, self.batches)
        for number in range(taken):
            held.append(take(iterator))
            digests.append(digest(held[-1]))
            if number == 1:
                time.sleep(PAUSE_S)  # the workers park
        after_last()
        if taken == self.batches and next(iterator, None) is not None:
            digests.append("one batch too many")
        return held


def take(iterator):
    """Take the next batch, or the user's error instead of it."""
    try:
        return next(iterator)
    except BatchTooLarge as error:
        return type(error).__name__


def digest(value, before=0):
    """Hash all that is in a batch."""
    if isinstance(value, torch.Tensor):
        return zlib.crc32(value.contiguous().numpy(), before)
    if isinstance(value, dict):
        value = list(value.items())
    if isinstance(value, list | tuple):
        for item in value:
            before = digest(item, before)
        return before
    return zlib.crc32(repr(value).encode(), before)


MORTAL = {"batch_sampler": in_rows(*[2] * 10), "ring_bytes": 2 << 20}

# The cheapest workload that passes a step is used for it, so the order is by cost.
WORKLOADS = {
    # Batches grow, past what a slot may fill unasked, then past ring_bytes.
    "growing": Workload(
        {
            "dataset": Samples(32 << 10),
            "batch_sampler": in_rows(2, 2, 2, 4, 4, 8, 32, 160, 32, 20, 2, 2),
            "collate_fn": with_copy,
            "slots": 6,
            "ring_bytes": 4 << 20,
        },
        batches=12,
    ),
    # Persistent workers, and a dataset that ends for one of them before it ends for the other.
    "persistent": Workload(
        {"dataset": Stream(), "batch_size": None, "persistent_workers": True}, batches=8, epochs=2
    ),
    # An epoch that is abandoned with requests in flight, and a segment that is used again.
    "abandoned": Workload(
        {"dataset": Samples(8 << 10), "batch_sampler": in_rows(*[2] * 12)},
        batches=12,
        epochs=2,
        taken=3,
    ),
    # Slots that their worker goes on reading.
    "kept": Workload(
        {"dataset": Samples(64), "batch_sampler": in_rows(*[2] * 12), "collate_fn": keeping},
        batches=12,
    ),
    # A worker that dies by itself, for the trainer's steps after a death; and the same without it.
    "mortal": Workload(
        {**MORTAL, "dataset": Mortal(64 << 10, last=5)},
        batches=10,
    ),
    "spared": Workload({**MORTAL, "dataset": Samples(64 << 10)}, batches=10),
    # Pages that come in several pieces.
    "large": Workload(
        {"dataset": Samples(4 << 20), "batch_sampler": in_rows(1, 10, 1, 1), "slots": 4}, batches=4
    ),
    # Samples that are kept for all workers.
    "cached": Workload(
        {"dataset": Cached(Partly(8 << 10)), "batch_sampler": in_rows(*[2] * 12)}, batches=12
    ),
}

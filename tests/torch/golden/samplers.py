"""Ways to ask for indices: what a golden case passes to the loader beside its dataset."""

import torch
from torch.utils.data import IterableDataset

BATCH_SIZE = 3


class EagerSampler:
    """
    Draws its order from torch's global generator at `iter()`, not at the first `next()`.

    This shows how often, and when, a loader calls `iter()` on it.
    """

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(torch.randperm(self.count).tolist())

    def __len__(self):
        return self.count


class LazySampler(EagerSampler):
    """
    Draws from torch's global generator at every `next()`, even after its end.

    This shows how far a loader reads ahead, and when.
    """

    def __iter__(self):
        return LazyOrder(iter(range(self.count)))


class LazyOrder:
    """The iterator of a lazy sampler."""

    def __init__(self, indices):
        self.indices = indices

    def __iter__(self):
        return self

    def __next__(self):
        torch.rand(1)
        return next(self.indices)


class EagerBatchSampler(EagerSampler):
    """Batches of two, four, two, four, ... indices in an order drawn at `iter()`."""

    def __iter__(self):
        order = torch.randperm(self.count).tolist()
        starts = sorted([*range(0, self.count, 6), *range(2, self.count, 6)])
        ends = [*starts[1:], self.count]
        return iter([order[start:end] for start, end in zip(starts, ends, strict=True)])

    def __len__(self):
        return len([*range(0, self.count, 6), *range(2, self.count, 6)])


def from_generator(dataset, generator):
    # An iterable dataset refuses shuffle; there the generator only gives the workers' seeds.
    shuffle = not isinstance(dataset, IterableDataset)
    return {"batch_size": BATCH_SIZE, "shuffle": shuffle, "generator": generator}


SAMPLINGS = {
    "sequential": lambda dataset, generator: {"batch_size": BATCH_SIZE},
    "drop_last": lambda dataset, generator: {"batch_size": BATCH_SIZE, "drop_last": True},
    "shuffle": lambda dataset, generator: {"batch_size": BATCH_SIZE, "shuffle": True},
    "generator": from_generator,
    "eager": lambda dataset, generator: {
        "batch_size": BATCH_SIZE,
        "sampler": EagerSampler(len(dataset)),
    },
    "batch_sampler": lambda dataset, generator: {"batch_sampler": EagerBatchSampler(len(dataset))},
    "lazy": lambda dataset, generator: {
        "batch_size": None,
        "sampler": LazySampler(len(dataset)),
    },
    "unbatched": lambda dataset, generator: {"batch_size": None},
    "eager_unbatched": lambda dataset, generator: {
        "batch_size": None,
        "sampler": EagerSampler(len(dataset)),
    },
}

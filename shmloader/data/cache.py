"""`cached()`: what a dataset returned once is copied from shared memory from then on."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from torch.utils.data import Dataset, IterableDataset

from shmloader import draws, requirements
from shmloader.stats import CacheStats
from shmloader.tolerance import Tolerating

if TYPE_CHECKING or requirements.LACKING is None:
    from shmloader.data.cache_memory import MISSING, CacheMemory
else:
    from shmloader.data.no_memory import MISSING, CacheMemory

Sample = TypeVar("Sample")


class Cached(Dataset):  # type: ignore[type-arg]
    """
    A dataset whose samples are fetched once. Made by `cached`.

    What it has not itself, such as `classes`, is that of the dataset inside.

    Attributes:
        dataset: The dataset inside.
        transform: Called with each sample, each time; None: nothing is.
    """

    dataset: Any
    transform: Callable[[Any], Any] | None

    def __init__(
        self, dataset: Any, memory: CacheMemory, transform: Callable[[Any], Any] | None
    ) -> None:
        """Keep the samples of a dataset in a memory."""
        self.dataset = dataset
        self.transform = transform
        self._memory = memory
        self._length = len(dataset)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        inner = vars(self).get("dataset")  # none while it is copied or unpickled
        if name == "__getitems__" and getattr(inner, name, None):
            return self._get_many
        if inner is None or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}", name=name)
        return getattr(inner, name)

    def __getitem__(self, index: Any) -> Any:
        sample = self._find(index)
        if sample is MISSING:
            with draws.put_back():
                sample = self.dataset[index]
            sample = self._keep(index, sample)
        return self._transformed(sample)

    def _get_many(self, indices: Sequence[Any]) -> list[Any]:
        """Stand in for the dataset's own `__getitems__`, which is asked for what is missing."""
        samples = [self._find(index) for index in indices]
        places = [place for place, sample in enumerate(samples) if sample is MISSING]
        if places:
            with draws.put_back():
                fetched = self.dataset.__getitems__([indices[place] for place in places])
            self._check(fetched, len(places))
            for place, sample in zip(places, fetched, strict=True):
                samples[place] = self._keep(indices[place], sample)
        return [self._transformed(sample) for sample in samples]

    def _check(self, fetched: Any, count: int) -> None:
        if not isinstance(fetched, list | tuple) or len(fetched) != count:
            raise TypeError(
                f"cached() keeps samples one by one, but {type(self.dataset).__name__}."
                f"__getitems__ returned a {type(fetched).__name__} for {count} indices: return a "
                "list with a sample for each"
            )

    def _find(self, index: Any) -> Any:
        return self._memory.find(self._number_of(index))

    def _keep(self, index: Any, sample: Any) -> Any:
        return self._memory.keep(self._number_of(index), sample)

    def _number_of(self, index: Any) -> int:
        """The place of an index, counted from 0; the length, where nothing is, if it has none."""
        try:
            number = operator.index(index)
        except TypeError:
            return self._length  # such as a slice, or a pair: a matter of the dataset
        if number < 0:
            number += self._length
        return number if 0 <= number < self._length else self._length

    def _transformed(self, sample: Any) -> Any:
        return sample if self.transform is None else self.transform(sample)

    def cache_stats(self) -> CacheStats:
        """Count hits, misses, entries and bytes, in all processes that have it."""
        return self._memory.stats()

    def close(self) -> None:
        """
        Give the memory back now; from then on every sample is fetched.

        In a process that only inherited it, or got it when it was started, nothing happens.
        """
        self._memory.close()

    def note_user(self, loader: int) -> None:
        """Tell viewers that the loader with that number in this process reads it."""
        self._memory.note_user(loader)


def cached(
    dataset: Dataset[Sample], max_bytes: int, transform: Callable[[Sample], Any] | None = None
) -> Cached:
    """
    Keep the samples of a dataset in shared memory, once for all workers and all epochs.

    The first process that asks for a sample fetches it and keeps it; from then on each gets it at
    the speed of copying. Every access, the first too, returns a copy of its own. Decode in the
    dataset, which runs once for each sample, and augment in transform, which runs each time.
    Nothing that is kept is given up: when the memory is full, what is not there is fetched each
    time.

    It works with any number of loaders and workers, forked or spawned, that live on between epochs
    or not, and without workers. Any process may be killed at any moment. Samples are compared with
    nothing: if the dataset returns something else for an index later, make another cache.

    Random draws of transform, and of all that follows, are the same whether a sample was kept or
    fetched: the generators of `random`, `numpy.random`, torch and `shmloader.rng()` are put back
    after a fetch. What the dataset itself draws for a sample is kept with it.

    Args:
        dataset: A dataset with a length and `__getitem__`; of one with `__getitems__`, that is
            called for what is missing. An index that is no number from `-len(dataset)` to
            `len(dataset) - 1` is fetched each time.
        max_bytes: Most bytes of shared memory, with 8 for each sample of the dataset. Less is taken
            if memory is short: then there is a warning, or `refused` in `cache_stats()`.
        transform: Called with the sample, which it may change, at each access; None: nothing is.

    Returns:
        A dataset whose other attributes are those of the one inside, with `cache_stats()` and
        `close()`. The memory is given back when the last process that has it drops it or ends.

    Raises:
        TypeError: The dataset is iterable, has no length or is one of `tolerant()`.
        ValueError: max_bytes leaves no room for samples.
        OutOfSharedMemory: The memory cannot be made or mapped.
    """
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise TypeError(
            f"cached() keeps samples by their index, and {type(dataset).__name__} has none: give "
            "it a dataset with __getitem__ and __len__"
        )
    if isinstance(dataset, Tolerating):
        raise TypeError(
            "cached() keeps a sample for each index, and tolerant() leaves some out: write "
            f"tolerant(cached({dataset.tolerance.label}, ...))"
        )
    try:
        length = len(dataset)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"cached() needs to know how many samples there are, and {type(dataset).__name__} has "
            "no __len__"
        ) from None
    try:
        max_bytes = operator.index(max_bytes)
    except TypeError:
        raise TypeError(f"max_bytes should be an int, but got {max_bytes!r}") from None
    if max_bytes < 1:
        raise ValueError(f"max_bytes is {max_bytes}: give the cache at least 1 byte")
    memory = CacheMemory(length, max_bytes, type(dataset).__name__)
    return Cached(dataset, memory, transform)

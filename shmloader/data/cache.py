"""`cached()`: what a dataset returned once is copied from shared memory from then on."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from torch.utils.data import Dataset, IterableDataset

from shmloader.samples import random_state
from shmloader.samples.datasets import made_of
from shmloader.samples.skip_errors import Tolerating
from shmloader.setup import requirements
from shmloader.setup.arguments import check_count
from shmloader.stats import CacheStats

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

    def __repr__(self) -> str:
        # Of what was counted: a debugger may ask at any moment, and the dataset is the user's.
        counts = vars(self)
        inner = type(counts.get("dataset")).__name__
        return f"cached({inner} of {counts.get('_length', 'unknown length')})"

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
            with random_state.put_back():
                sample = self.dataset[index]
            sample = self._keep(index, sample)
        return self._transformed(sample)

    def _get_many(self, indices: Sequence[Any]) -> list[Any]:
        """Stand in for the dataset's own `__getitems__`, which is asked for what is missing."""
        samples = [self._find(index) for index in indices]
        places = [place for place, sample in enumerate(samples) if sample is MISSING]
        if places:
            with random_state.put_back():
                fetched = self.dataset.__getitems__([indices[place] for place in places])
            self._check(fetched, len(places))
            for place, sample in zip(places, fetched, strict=True):
                samples[place] = self._keep(indices[place], sample)
        return [self._transformed(sample) for sample in samples]

    def _check(self, fetched: Any, count: int) -> None:
        if not isinstance(fetched, list | tuple) or len(fetched) != count:
            raise TypeError(
                "cached() stores samples one by one, but "
                f"{type(self.dataset).__name__}.__getitems__ returned a {type(fetched).__name__} "
                f"for {count} indices: return a list with a sample for each"
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


def cached(
    dataset: Dataset[Sample], max_bytes: int, transform: Callable[[Sample], Any] | None = None
) -> Cached:
    """
    Store the samples of a dataset in shared memory, once for all workers and all epochs.

    The first process that reads a sample fetches and stores it; from then on every process copies
    it from the cache. Every access, the first too, returns a new copy. Decode in the dataset, which
    runs once for each sample, and augment in transform, which runs each time. Stored samples are
    never evicted: when the memory is full, samples that are not stored are fetched each time.

    It works with any number of loaders and workers, forked or spawned, persistent or not, and
    without workers. Any process may be killed at any moment. Samples are not checked for changes:
    if the dataset later returns something else for an index, make another cache.

    The random numbers of transform, and of all that follows, are the same whether a sample was
    stored or fetched: the states of `random`, `numpy.random`, torch and `shmloader.rng()` are
    restored after a fetch. Random numbers in the dataset are drawn once, for the stored sample.

    Args:
        dataset: A dataset with a length and `__getitem__`. If it has `__getitems__`, that is called
            for missing samples. An index other than a number from `-len(dataset)` to
            `len(dataset) - 1` is fetched each time.
        max_bytes: Most bytes of shared memory, including 8 for each sample of the dataset. If
            memory is short, the cache takes less, with a warning or `refused` in `cache_stats()`.
        transform: Called with the sample, which it may change, at each access; None: no transform.

    Returns:
        A dataset whose other attributes are those of the given one, with `cache_stats()` and
        `close()`. The memory is freed when the last process that uses the cache drops it or ends.

    Raises:
        TypeError: The dataset is iterable, has no length or is one of `tolerant()`.
        ValueError: max_bytes leaves no room for samples.
        OutOfSharedMemory: The memory cannot be allocated or mapped.
    """
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise TypeError(
            f"cached() stores samples by index, and {type(dataset).__name__} has no index: give "
            "it a dataset with __getitem__ and __len__"
        )
    if isinstance(dataset, Tolerating):
        raise TypeError(
            "cached() stores a sample for each index, and tolerant() skips some: write "
            f"tolerant(cached({dataset.tolerance.label}, ...))"
        )
    try:
        length = len(dataset)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"cached() needs to know how many samples there are, and {type(dataset).__name__} has "
            "no __len__"
        ) from None
    most_bytes = check_count("max_bytes", max_bytes)
    memory = CacheMemory(length, most_bytes, type(dataset).__name__)
    return Cached(dataset, memory, transform)


def caches_in(dataset: Any) -> list[Cached]:
    """List the caches that a dataset is, wraps, or holds in attributes and lists, each once."""
    # By real types: a dataset may be a proxy of which nothing may be asked.
    return [each for each in made_of(dataset) if issubclass(type(each), Cached)]

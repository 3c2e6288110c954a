"""
Requests of torch's own samplers drawn as arrays: the same indices from the same generators.

Drawing the indices of a batch one by one, and packing them into a request, costs the trainer more
than all the rest of a large batch. So where the sampler is exactly one of torch's, its arithmetic
is done here on arrays. Whether this torch still draws what is drawn here is looked at once in each
process, and again if other code replaces `__iter__` of one; if not, and for every other sampler,
torch's own path is taken.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

from shmloader.core import Plan
from shmloader.order.samplers import length_of
from shmloader.setup import requirements

_Indices = NDArray[numpy.int64]
_BASE_SEEDS = (0, 2**31)
# Indices in order are nothing to keep for torch, but 8 bytes each for an array: a dataset may say
# that it has 10^12 samples, because it has no end.
_SEQUENCE_MAX = 1 << 22
_BATCH_MAX = (1 << 63) - 1  # what a C integer holds; torch takes more


def plan(sampler: Any) -> "Plan | None":
    """Plan the requests of an epoch; None, as without a core: the sampler has to be iterated."""
    # On another default device torch's samplers draw there, or raise.
    is_here = requirements.LACKING is None and torch.empty(0).device.type == "cpu"
    kinds = (BatchSampler, DistributedSampler, RandomSampler, SequentialSampler)
    draws_alike = is_here and _draw_as_here(*(kind.__iter__ for kind in kinds))
    return _plan(sampler) if draws_alike else None


def begun(sampler: Any) -> Iterator[Any]:
    """Begin an epoch, by a plan if there is one."""
    planned = plan(sampler)
    return iter(sampler) if planned is None else planned


def jumped(sampler: Any, requests: int) -> Iterator[Any] | None:
    """
    Begin an epoch after so many requests; None for a sampler that has to draw them.

    What these samplers draw depends on no generator, so nothing is to be drawn again.
    """
    if type(sampler) is not BatchSampler:
        return None
    inner: Any = sampler.sampler
    if type(inner) is SequentialSampler and not _is_short(inner):
        return _stretches(length_of(inner.data_source), sampler, requests)
    is_in_order = type(inner) is DistributedSampler and not inner.shuffle
    if not is_in_order and type(inner) is not SequentialSampler:
        return None
    planned = plan(sampler)
    if planned is not None:
        planned.skip(requests)
    return planned


def _stretches(length: int, sampler: BatchSampler, requests: int) -> Iterator[list[int]] | None:
    """Yield the requests of a long sequence; None if its length is not known."""
    if length < 0:
        return None
    size = sampler.batch_size
    begins = range(requests * size, length - size + 1 if sampler.drop_last else length, size)
    return (list(range(begin, min(begin + size, length))) for begin in begins)


def _plan(sampler: Any) -> "Plan | None":
    if type(sampler) is not BatchSampler or sampler.batch_size > _BATCH_MAX:
        return None
    inner: Any = sampler.sampler
    draw: Callable[[], _Indices]
    end = None
    if type(inner) is SequentialSampler and _is_short(inner):
        draw = functools.partial(_sequence, inner)
    elif type(inner) is RandomSampler and _is_one_permutation(inner):
        shuffle = _Shuffle(inner)
        draw, end = shuffle.draw, shuffle.end
    elif type(inner) is DistributedSampler:
        draw = functools.partial(_share, inner)
    else:
        return None
    return Plan(draw, sampler.batch_size, sampler.drop_last, end)


def _sequence(sampler: SequentialSampler) -> _Indices:
    return numpy.arange(len(sampler.data_source), dtype=numpy.int64)


def _is_short(sampler: SequentialSampler) -> bool:
    return 0 <= length_of(sampler.data_source) <= _SEQUENCE_MAX


def _is_one_permutation(sampler: RandomSampler) -> bool:
    # torch raises the error of a length that the dataset does not tell, where it must.
    return not sampler.replacement and 0 < length_of(sampler.data_source) == sampler.num_samples


class _Shuffle:
    """A `RandomSampler`'s epoch: the generator and the length are those of its first draw."""

    def __init__(self, sampler: RandomSampler) -> None:
        self._sampler = sampler
        self._drawn: tuple[int, torch.Generator] | None = None

    def draw(self) -> _Indices:
        length, generator = len(self._sampler.data_source), self._sampler.generator
        if generator is None:
            seed = int(torch.empty((), dtype=torch.int64).random_().item())
            generator = torch.Generator().manual_seed(seed)
        else:
            self._drawn = length, generator
        return torch.randperm(length, generator=generator).numpy()

    def end(self) -> None:
        """Draw a second permutation, of which nothing is taken, as torch does."""
        if self._drawn is not None:
            length, generator = self._drawn
            torch.randperm(length, generator=generator)


def _share(sampler: DistributedSampler[Any]) -> _Indices:
    """The indices of one rank, of which all ranks get equally many."""
    length, total = len(sampler.dataset), sampler.total_size  # type: ignore[arg-type]
    if length > total and not sampler.drop_last:
        return numpy.array(list(sampler), numpy.int64)  # torch raises: the dataset has grown
    if sampler.shuffle:
        generator = torch.Generator().manual_seed(sampler.seed + sampler.epoch)
        order = torch.randperm(length, generator=generator)
    else:
        order = torch.arange(length)
    if not sampler.drop_last and 0 < length < total:
        order = order.repeat(-(-total // length))
    return order[:total][sampler.rank :: sampler.num_replicas].contiguous().numpy()


@functools.cache
def _draw_as_here(*ways: Callable[[Any], Any]) -> bool:
    """Compare with this torch's ways, or a user's in their place, on samplers of a few indices."""
    return all(
        [request.tolist() for request in _plan(make()) or ()] == list(make())
        for make in _samplers_to_compare()
    )


def _samplers_to_compare() -> Iterator[Callable[[], BatchSampler]]:
    for length, drop_last in itertools.product((7, 8), (False, True)):
        for seed in _BASE_SEEDS:
            yield functools.partial(_random, length, seed, drop_last)
        yield functools.partial(_batches, SequentialSampler(range(length)), drop_last)
        for rank, shuffle in itertools.product((0, 2), (False, True)):
            options = {"num_replicas": 3, "rank": rank, "shuffle": shuffle, "drop_last": drop_last}
            inner: Any = DistributedSampler(range(length), seed=5, **options)  # type: ignore[arg-type]
            yield functools.partial(_batches, inner, drop_last)


def _random(length: int, seed: int, drop_last: bool) -> BatchSampler:
    generator = torch.Generator().manual_seed(seed)
    return _batches(RandomSampler(range(length), generator=generator), drop_last)


def _batches(sampler: Any, drop_last: bool) -> BatchSampler:
    return BatchSampler(sampler, 3, drop_last)

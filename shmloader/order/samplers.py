"""
What a loader draws its indices from: of which kind, by which generators, in which epoch.

torch's samplers are known here, in one table. Every other one is user code.
"""

import random
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.dataloader import _InfiniteConstantSampler

from shmloader.worker.snapshot import is_stateful

_DEPTH = 8
_IN_ORDER = "in order"
# torch's that draw from no generator, or from that of their own, or else from the default one.
_DRAW_NOTHING = (BatchSampler, DistributedSampler, SequentialSampler)
_DRAW_FROM_THEIR_OWN = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
# All others may run code of the user's when they are iterated, or asked for their length.
TORCHS = (*_DRAW_NOTHING, *_DRAW_FROM_THEIR_OWN)
_CANNOT_DRAW = (*_DRAW_NOTHING, _InfiniteConstantSampler, list, tuple, range)
GENERATORS = (
    *(torch.Generator, random.Random),
    *(numpy.random.Generator, numpy.random.RandomState, numpy.random.BitGenerator),
)


def nested(sampler: Any) -> Iterator[Any]:
    """A sampler, and those that it draws from."""
    for _ in range(_DEPTH):
        if sampler is None:
            return
        yield sampler
        inside = (getattr(sampler, name, None) for name in ("sampler", "batch_sampler"))
        sampler = next((each for each in inside if each is not None), None)


def length_of(dataset: Any) -> int:
    """How many items a dataset, or a sampler, says that it has; -1 if it does not say."""
    try:
        return len(dataset)
    except Exception:
        return -1  # of the user's; torch will raise it where it must


def is_endless(sampler: Any) -> bool:
    """Returns True for the sampler of an iterable dataset, which draws nothing."""
    return any(isinstance(each, _InfiniteConstantSampler) for each in nested(sampler))


def distributed(sampler: Any) -> DistributedSampler[Any] | None:
    """The sampler that divides the samples among ranks; None if there is none."""
    found = (each for each in nested(sampler) if isinstance(each, DistributedSampler))
    return next(found, None)


def epoch_of(sampler: Any) -> int:
    """The epoch that a sampler, or one that it draws from, was told; -1 if they take none."""
    counting = _counting(sampler)
    return -1 if counting is None else int(counting.epoch)


def tell_epoch(sampler: Any, epoch: int) -> None:
    """Call set_epoch() of the sampler that `epoch_of` asks."""
    counting = _counting(sampler)
    if counting is not None:
        counting.set_epoch(epoch)


def _counting(sampler: Any) -> Any:
    told = (each for each in nested(sampler) if callable(getattr(each, "set_epoch", None)))
    return next((each for each in told if type(getattr(each, "epoch", None)) is int), None)


def kind_of(sampler: Any) -> str:
    """Say of which kind a sampler is, as far as the order that it draws depends on it."""
    return " of ".join(_describe(each) for each in nested(sampler))


def _describe(sampler: Any) -> str:
    name = type(sampler).__name__
    if isinstance(sampler, DistributedSampler):
        return f"{name}({sampler.num_replicas} ranks, {_order(sampler)})"
    if isinstance(sampler, RandomSampler):
        with_replacement = "with replacement, " if sampler.replacement else ""
        return f"{name}({with_replacement}{sampler.num_samples} samples)"
    return name


def _order(sampler: DistributedSampler[Any]) -> str:
    order = f"shuffled by seed {sampler.seed}" if sampler.shuffle else _IN_ORDER
    return f"{order}, drop_last" if sampler.drop_last else order


def divided_order(sampler: Any, ranks: int) -> str:
    """Describe the order that torch's samplers divide among ranks, in batches; "": no such one."""
    inner: Any = sampler.sampler if type(sampler) is BatchSampler else None
    if type(inner) is DistributedSampler:
        return _order(inner)
    return _IN_ORDER if type(inner) is SequentialSampler and ranks == 1 else ""


def draws_by_default(sampler: Any) -> bool:
    """Returns True if a sampler may draw from torch's default generator."""
    for each in nested(sampler):
        kind = type(each)
        if kind in _DRAW_FROM_THEIR_OWN and each.generator is not None:
            continue
        if kind not in _CANNOT_DRAW:
            return True
    return False


def generator_of(sampler: Any) -> torch.Generator | None:
    """The generator that a sampler, or one that it draws from, has as its own."""
    owned = (getattr(each, "generator", None) for each in nested(sampler))
    return next((own for own in owned if isinstance(own, torch.Generator)), None)


def unknown_generators(sampler: Any) -> list[str]:
    """
    Name what a sampler seems to draw from and no state has, as in "Shuffled.rng".

    One that is told its epoch seeds them by that, as is usual.
    """
    own = generator_of(sampler)
    return [
        f"{type(each).__name__}.{name}"
        for each in nested(sampler)
        if not is_stateful(each) and _counting(each) is None
        for name, value in getattr(each, "__dict__", {}).items()
        if isinstance(value, GENERATORS) and value is not own
    ]


def lacks_generator(sampler: Any) -> bool:
    """Returns True if one of torch's was given none; others may make theirs when they begin."""
    return any(
        type(each) in _DRAW_FROM_THEIR_OWN and each.generator is None for each in nested(sampler)
    )

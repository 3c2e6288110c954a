"""
What a loader draws its indices from, for a state: of which kind, by which generators.

A sampler that has state_dict() and load_state_dict() is asked for its state at each draw. Of every
other one the number of draws is kept, and the states of its generators at the epoch's beginning.
"""

import itertools
import pickle
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
_GENERATORS = (
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


def _batches_plainly(sampler: Any) -> bool:
    """Returns True if the sampler inside is as far as the batches are."""
    return isinstance(sampler, BatchSampler) and type(sampler).__iter__ is BatchSampler.__iter__


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
        if isinstance(value, _GENERATORS) and value is not own
    ]


def lacks_generator(sampler: Any) -> bool:
    """Returns True if one of torch's was given none; others may make theirs when they begin."""
    return any(
        type(each) in _DRAW_FROM_THEIR_OWN and each.generator is None for each in nested(sampler)
    )


class Stateful:
    """
    What of a loader's sampler has a state of its own, and that state.

    Attributes:
        owner: The sampler that is asked; None if none has a state.
        unasked: The kind of a sampler that has a state, inside of one that is not asked; or "".
        iterator: The iterator of batches, if that has a state; otherwise None.
    """

    def __init__(self, sampler: Any) -> None:
        inner = sampler.sampler if _batches_plainly(sampler) else None
        self.owner = next((each for each in (sampler, inner) if is_stateful(each)), None)
        # What ends in a short batch is after its end, which its state may call a beginning.
        self._full = sampler.batch_size if self.owner is inner is not None else 0
        inside = itertools.islice(nested(sampler), 1, None)
        unasked = next((each for each in inside if is_stateful(each)), None)
        # Its place is not that of the batches if they are made in some other way.
        self.unasked = "" if unasked is None or self.owner is not None else type(unasked).__name__
        self.iterator: Any = None
        self._has_failed = False

    def watch(self, iterator: Any) -> None:
        """Ask this iterator too, if it has a state."""
        self.iterator = iterator if is_stateful(iterator) else None
        self._has_failed = False

    @property
    def is_here(self) -> bool:
        """True if there is something to ask."""
        return self.owner is not None or self.iterator is not None

    def state(self, drawn: Any = ()) -> bytes | None:
        """
        Ask for the state now, as a copy; None once that has failed: then draws are counted.

        Args:
            drawn: The batch's indices that were drawn last; nothing before the first.
        """
        if self._has_failed or not self.is_here:
            return None
        try:
            asked = [None if it is None else it.state_dict() for it in (self.owner, self.iterator)]
            has_ended = self._full > 0 and 0 < len(drawn) < self._full
            return pickle.dumps([*asked, int(has_ended)], protocol=5)
        except Exception:
            self._has_failed = True
            return None


class Apart:
    """
    An iterator over requests whose draws from torch's default generator are apart from others.

    A resumed sampler goes on where it was, and the training's own draws are left alone; unless the
    default generator is just where the sampler left it, so that both are one.
    """

    def __init__(self, requests: Iterator[Any]) -> None:
        """Go on from where the default generator is now."""
        self._requests = requests
        self._state = torch.default_generator.get_state()

    def __iter__(self) -> "Apart":
        return self

    def __next__(self) -> Any:
        outside = torch.default_generator.get_state()
        is_apart = not torch.equal(outside, self._state)
        if is_apart:
            torch.default_generator.set_state(self._state)
        try:
            return next(self._requests)
        finally:
            self._state = torch.default_generator.get_state()
            if is_apart:
                torch.default_generator.set_state(outside)


class Drawn:
    """
    A sampler that was brought to a place.

    Attributes:
        requests: What comes from there on, those first that were drawn and not delivered.
        iterator: torch's own iterator of requests.
    """

    def __init__(self, requests: Iterator[Any], iterator: Any) -> None:
        self.requests = requests
        self.iterator = iterator

    def __iter__(self) -> "Drawn":
        return self

    def __next__(self) -> Any:
        return next(self.requests)


def chained(kept: list[Any], requests: Iterator[Any]) -> Iterator[Any]:
    """What was kept, then the rest."""
    return itertools.chain(kept, requests) if kept else requests

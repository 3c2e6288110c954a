"""
Bringing a sampler to where it was when a state was saved.

One that has a state of its own is given it. One that draws from no generator jumps there. Every
other one draws again what it drew, and is held against the checksum of the indices delivered.
"""

import copy
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from shmloader.core import replay
from shmloader.order import planning, samplers
from shmloader.order.resuming.stateful import Stateful
from shmloader.order.resuming.states import END, EPOCH, State
from shmloader.worker.snapshot import is_stateful

_POSITIVE = 2**63 - 1


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


class Drawn(NamedTuple):
    """
    A sampler that was brought to a place.

    Attributes:
        requests: What comes from there on, those first that were drawn and not delivered.
        iterator: torch's own iterator of requests.
        sum_then: Of a sampler with a state, the checksum of what it had drawn in that.
    """

    requests: Iterator[Any]
    iterator: Any
    sum_then: int = 0


def chained(kept: list[Any], requests: Iterator[Any]) -> Iterator[Any]:
    """What was kept, then the rest."""
    return itertools.chain(kept, requests) if kept else requests


def draw_again(
    sampler: Any, state: State, stateful: Stateful, generator: Any, *, checks: bool
) -> Drawn:
    """
    Bring a sampler to where a state says, with its generators as they were noted.

    Args:
        stateful: What of the sampler has a state.
        generator: The loader's, from which the base seed is drawn.
        checks: Hold what is drawn against the state's checksum; otherwise only its epoch.
    """
    if state.has_sampler:
        return _restored(sampler, state, stateful, generator, checks=checks)
    jumped = planning.jumped(sampler, state.low)
    if jumped is not None:
        return _jumped(jumped, sampler, state, generator)
    planned = planning.plan(sampler)
    iterator: Any = iter(sampler) if planned is None else planned
    _draw_seed(state, generator)
    kept: list[Any] = []
    checksum = replayed(iterator, 0, state, kept)
    differs = checksum != state.checksum
    if differs if checks else _is_in_another_epoch(sampler, state):
        raise ValueError(disagreement(sampler, state, _DELIVERED, _OWN_GENERATOR))
    by_default = samplers.draws_by_default(sampler)
    # At its end it draws from the training's own generator, if it would have been asked there.
    is_at_end = state.workers == 0 and is_drawn_out(sampler, state)
    if planned is None and by_default and not is_at_end:
        return Drawn(chained(kept, Apart(iterator)), iterator)
    if planned is not None and by_default and not state.drawn:
        # It draws once, for its first request, which without workers is asked for later.
        first = Apart(itertools.islice(iterator, 1))
        return Drawn(itertools.chain(first, iterator), iterator)
    return Drawn(chained(kept, iterator), iterator)


def _jumped(jumped: Iterator[Any], sampler: Any, state: State, generator: Any) -> Drawn:
    if state.low > len(sampler):
        raise ValueError(_TOO_FEW.format(drawn=state.drawn))
    _draw_seed(state, generator)
    kept: list[Any] = []
    replayed(jumped, state.low, state, kept)
    return Drawn(chained(kept, jumped), jumped)


def _draw_seed(state: State, generator: Any) -> None:
    """Draw the base seed again if it was drawn after the moment at which generators were noted."""
    if state.seeds_later:
        torch.empty((), dtype=torch.int64).random_(generator=generator)


def _restored(
    sampler: Any, state: State, stateful: Stateful, generator: Any, *, checks: bool
) -> Drawn:
    owner = _owner_with_state(sampler, state, stateful)
    iterator = iter(sampler)
    _draw_seed(state, generator)
    if state.sampler_iterator is not None:
        if not is_stateful(iterator):
            raise ValueError(_STATELESS.format(kind=samplers.kind_of(sampler)))
        iterator.load_state_dict(copy.deepcopy(state.sampler_iterator))
    kept: list[Any] = []
    requests: Iterator[Any] = iterator
    if state.sampler_at == 0 and state.sampler_iterator is None:
        # Where nothing was drawn, it may have said that it is still at the end of the epoch before.
        first = list(itertools.islice(iterator, 1))
        if not first:
            requests = iterator = iter(sampler)
        requests = chained(first, requests)
    sum_then = (state.checksum - replayed(requests, state.sampler_at, state, kept)) & _POSITIVE
    if checks and state.sampler_sum not in (-1, sum_then):
        raise ValueError(_DRAWS_OTHERS.format(kind=samplers.kind_of(sampler), at=state.sampler_at))
    if owner is not None and is_drawn_out(sampler, state):
        if next(requests, None) is not None:
            # It has ended, or did so with a short batch, and goes on with its next epoch.
            _load(owner, state)
        requests = iter(())
    return Drawn(chained(kept, requests), iterator, sum_then)


def _load(owner: Any, state: State) -> None:
    # A copy: some take the dictionary apart.
    owner.load_state_dict(copy.deepcopy(state.sampler_state))


def _owner_with_state(sampler: Any, state: State, stateful: Stateful) -> Any:
    """Give the sampler its state. Returns what of it took one; None if none was saved."""
    if state.sampler_state is None:
        return None
    check_owner(sampler, stateful)
    before = samplers.epoch_of(sampler)
    _load(stateful.owner, state)
    if before == samplers.epoch_of(sampler) and samplers.distributed(sampler) is not None:
        check_epoch(sampler, state)  # its state does not say which
    return stateful.owner


def check_owner(sampler: Any, stateful: Stateful) -> None:
    """Refuse a sampler's state for one that cannot take it."""
    if stateful.owner is None:
        raise ValueError(_STATELESS.format(kind=samplers.kind_of(sampler)))


def is_drawn_out(sampler: Any, state: State) -> bool:
    """Returns True if a sampler has no batch left in its epoch, by what it says."""
    is_over = state.at == END or bool(state.sampler_ended)
    return is_over or 0 <= samplers.length_of(sampler) <= state.drawn


def replayed(requests: Iterator[Any], first: int, state: State, kept: list[Any]) -> int:
    """
    Draw from a number up to where was drawn before.

    Args:
        kept: Gets the requests that were not delivered.

    Returns:
        The checksum of those that were.
    """
    number, total, missing = first, 0, set(state.missing)
    try:
        while number < state.drawn:
            number, part = replay(requests, number, state.drawn, missing, kept)
            total += part
    except StopIteration:
        raise ValueError(_TOO_FEW.format(drawn=state.drawn)) from None
    return total & _POSITIVE


_TOO_FEW = (
    "the sampler ended before batch {drawn}, up to which the saved run had drawn: give the loader "
    "the sampler that the state was saved with"
)
_DRAWS_OTHERS = (
    "the sampler ({kind}), from its state after batch {at}, does not draw the same batches again "
    "that were delivered after that, so the rest would differ: a state_dict() that takes long is "
    "not called for each batch, so have the sampler's batches follow from its state, by saving "
    "its generators in it"
)
_STATELESS = (
    "the state contains a state of its sampler, but this loader's sampler ({kind}) has no "
    "load_state_dict()"
)


def _is_in_another_epoch(sampler: Any, state: State) -> bool:
    epoch = samplers.epoch_of(sampler)
    return epoch >= 0 and state.sampler_epoch not in (-1, epoch)


def check_epoch(sampler: Any, state: State) -> None:
    """Refuse the rest of an epoch for a sampler that is in another one."""
    if state.at == EPOCH and not state.is_finished and _is_in_another_epoch(sampler, state):
        raise ValueError(disagreement(sampler, state, _DELIVERED, _OWN_GENERATOR))


_DELIVERED = "were delivered before the state was saved"
_OWN_GENERATOR = (
    "give the sampler its own generator (generator=torch.Generator()), have it draw from no "
    "other, such as numpy's, or give it state_dict() and load_state_dict()"
)


def disagreement(sampler: Any, state: State, which: str, advice: str) -> str:
    """
    Say that a sampler does not draw what it drew.

    Args:
        which: What those batches are that were delivered.
        advice: What to do if the sampler's epoch is the same.
    """
    if _is_in_another_epoch(sampler, state):
        advice = (
            f"its epoch was {state.sampler_epoch} and is {samplers.epoch_of(sampler)}: call "
            f"set_epoch({state.sampler_epoch}) first"
        )
    return (
        f"the sampler does not draw again the indices of the {state.drawn - len(state.missing)} "
        f"batches that {which}, so the rest would differ: {advice}"
    )

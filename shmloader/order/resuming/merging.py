"""
One state of the states of all ranks, from which another number of ranks goes on.

torch's DistributedSampler deals one order out: rank r of W gets the positions r, r + W, r + 2W and
so on. So batch k of all ranks together has the positions from k*B*W up to (k + 1)*B*W, for batches
of B samples. Ranks of another number have the same samples in batch k, as long as the product of B
and W stays: only which of them each rank gets changes, and how many positions are added after the
last sample, or dropped there, so that all ranks get equally many.

Key invariant: a rank that goes on from a merged state is where it would be in an undisturbed run
with its number of ranks, checksum included. So what it saves is a state like any other, which can
be merged again.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch.utils.data import BatchSampler, DistributedSampler, SequentialSampler

from shmloader.order import planning
from shmloader.order.resuming.checkpoint import SAME
from shmloader.order.resuming.drawing import Drawn, chained, disagreement, replayed
from shmloader.order.resuming.states import END, FINISHED, UNSET, State, read

# Of the facts that have to be the same, those that the new ranks need not share with the old ones.
MAY_DIFFER = ("batch_size", "sampler")

_KEPT = (
    *("recipe", "seed_by", "ranks", "length", "batch_size", "drop_last", "sampler", "order"),
    *("epoch", "sampler_epoch", "base_seed", "drawn", "low", "missing"),
)
_MANY = 8


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """
    Merge the states of all ranks into one, for a run with another number of ranks.

    Each of the new ranks loads the merged state into a loader with torch's `DistributedSampler` for
    their number, and a `batch_size` with which all ranks together have as many samples in each step
    as before. Each step then has the same samples, and the random numbers begin again.

    Args:
        states: What `state_dict` of each rank's loader returned after the same step, in any order.

    Returns:
        ints and strs under the keys of any state, with the checksum of each rank.

    Raises:
        ValueError: A rank is missing or there twice, the ranks were not at the same position, or
            their samples were not divided by torch's `DistributedSampler`. The message has the
            numbers.
        TypeError: One of the states is not a dictionary.
    """
    if isinstance(states, (Mapping, str)):
        raise TypeError(
            "merge_states() takes a list with the state of each rank, but got one "
            f"{type(states).__name__}"
        )
    found = [read(each) for each in states]
    if any(each.is_merged for each in found):
        return _merged_before(found)
    _check_ranks(found)
    found.sort(key=lambda each: int(each.rank))
    first = found[0]
    _check_division(first)
    for each in found:
        _check_order(each)
        _check_alike(first, each)
    return {
        **UNSET,
        **{name: first.raw[name] for name in _KEPT},
        "rank": -1,
        "at": _moment(first),
        FINISHED: first.is_finished,
        "checksums": [int(each.checksum) for each in found],
    }


# What can be merged


def _merged_before(found: list[State]) -> dict[str, Any]:
    """Ranks that have loaded a merged state, and not begun, all have that one."""
    if any(each.raw != found[0].raw for each in found):
        merged = sum(each.is_merged for each in found)
        raise ValueError(
            f"{merged} of these {len(found)} states were merged before and loaded, and no batch "
            "was requested since, but they are not all equal: have all ranks save after the same "
            "step"
        )
    return found[0].raw.copy()


def _check_ranks(found: list[State]) -> None:
    numbers = {int(each.ranks) for each in found}
    if len(numbers) != 1:
        raise ValueError(
            f"{len(found)} states of runs with {sorted(numbers)} ranks cannot be merged: pass one "
            "of each rank of one run"
        )
    (ranks,), counts = numbers, Counter(int(each.rank) for each in found)
    wrong = [rank for rank in range(ranks) if counts[rank] != 1]
    if wrong or len(found) != ranks:
        raise ValueError(
            f"{len(found)} states of a run with {ranks} ranks cannot be merged: pass one of each "
            f"rank; rank {_listed(wrong)} is missing or there more than once"
        )


def _check_division(state: State) -> None:
    if not state.order:
        of = f"a loader with the sampler {state.sampler!r}" if state.sampler else _DIVIDES_ITSELF
        raise ValueError(f"these states are of {of}, on each of {state.ranks} ranks: {_ONLY}")


_DIVIDES_ITSELF = "an iterable dataset, which divides its samples among the ranks itself"
_ONLY = (
    "only batches of torch's DistributedSampler, or of its SequentialSampler on one rank, can be "
    "divided again"
)


def _check_order(state: State) -> None:
    if state.missing:
        raise ValueError(
            f"rank {state.rank} was not given batch {_listed(state.missing)} of its first "
            f"{state.drawn}: what in_order=False has delivered cannot be divided again, unless "
            "nothing is missing before it"
        )


def _check_alike(first: State, other: State) -> None:
    """Refuse a rank that was not where the first one was."""
    there = _place_of(other)
    for words, this in _place_of(first).items():
        if this != there[words]:
            raise ValueError(
                f"these states differ in {words}: {this!r} on rank {first.rank} and "
                f"{there[words]!r} on rank {other.rank}. Have all ranks save after the same step "
                "of one run"
            )


def _place_of(state: State) -> dict[str, Any]:
    """Say in which all ranks have to be alike, by how an error calls it."""
    return {
        **{words: state.raw[name] for name, words in SAME.items()},
        "the moment": _moment(state),
        "the epoch of its sampler": state.sampler_epoch,
        "the number of epochs that its workers had ended": state.epoch,
        "the number of batches that were delivered": state.drawn,
    }


def _moment(state: State) -> str:
    return END if state.is_finished else str(state.at)


def _listed(numbers: list[int]) -> str:
    more = f" and {len(numbers) - _MANY} more" if len(numbers) > _MANY else ""
    return ", ".join(map(str, numbers[:_MANY])) + more


# Going on


def check(state: State, facts: dict[str, Any]) -> None:
    """Refuse a merged state for ranks that cannot go on from it; facts: of their loader."""
    if facts["order"] != state.order:
        raise ValueError(
            f"this state was merged from {state.ranks} ranks with the sampler {state.sampler!r}, "
            f"and here it is {facts['sampler']!r} on each of {facts['ranks']} ranks: everything "
            f"but the number of ranks has to be the same, and {_ONLY}"
        )
    _check_step(state, facts["ranks"], facts["batch_size"])


def _check_step(state: State, ranks: int, batch_size: int) -> None:
    then, here = state.ranks * state.batch_size, ranks * batch_size
    if then == here:
        return
    advice = (
        f"pass batch_size={then // ranks}"
        if then % ranks == 0
        else f"{then} cannot be divided by {ranks}, so use another number of ranks"
    )
    raise ValueError(
        f"this state was merged from {state.ranks} ranks with batch_size {state.batch_size}, "
        f"{then} samples in each step, and this loader has {ranks} ranks with batch_size "
        f"{batch_size}, {here} samples: {advice}"
    )


def draw_again(sampler: Any, state: State) -> tuple[Drawn, int, int]:
    """
    Bring a rank's sampler to where a merged state says.

    Args:
        sampler: One that `check` has not refused.

    Returns:
        What comes from there on, the checksum of the indices that this rank would have had, and of
        how many batches: fewer if its epoch is shorter, because more is dropped at the end.
    """
    then = planning.begun(_sampler_of_then(sampler, state))
    if replayed(then, 0, state, []) != state.checksums[0]:
        which = f"rank 0 of {state.ranks} was given before the states were merged"
        raise ValueError(disagreement(sampler, state, which, _AS_SAVED))
    requests = planning.begun(sampler)
    kept: list[Any] = []
    drawn = min(int(state.drawn), len(sampler))
    here = replace(state, raw={**state.raw, "drawn": drawn})
    checksum = replayed(requests, 0, here, kept)
    return Drawn(chained(kept, requests), requests), checksum, drawn


def _sampler_of_then(sampler: Any, state: State) -> Any:
    """The sampler that rank 0 of that run had, at the epoch of the one here."""
    inner: Any = sampler.sampler
    if type(inner) is SequentialSampler:
        if state.ranks == 1:
            return sampler  # of a dataset that may be longer than any list
        source: Any = inner.data_source
        each = DistributedSampler[Any](source, state.ranks, 0, shuffle=False)
    else:
        order = {"shuffle": inner.shuffle, "seed": inner.seed, "drop_last": inner.drop_last}
        each = DistributedSampler[Any](inner.dataset, state.ranks, 0, **order)
        each.set_epoch(inner.epoch)
    return BatchSampler(each, state.batch_size, sampler.drop_last)


_AS_SAVED = "use the same dataset and torch as when the states were saved"

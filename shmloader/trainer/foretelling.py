"""
Foretelling the first requests of the next epoch, so that the workers need not idle at its edge.

A guess is made by running the sampler once more while all generators are put aside. It changes
nothing: what torch draws later is compared with it, and only an equal guess is used.
"""

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DistributedSampler

from shmloader import draws
from shmloader.core import Indices
from shmloader.trainer.resuming.samplers import TORCHS, nested

_PURE = (*TORCHS, list, tuple, range)  # these change nothing of their own by being iterated
_WRONG_IN_A_ROW = 2  # then a loader's order is not to be foretold
# A guess pays while it takes no more of the processor than this, and this part of the epoch's time.
_CHEAP_S, _DEAR = 2e-3, 0.01
_PLAIN = {int, str, bytes, float, bool, type(None)}


class Foreteller:
    """Guesses how the next epoch of one iterator will begin, for as long as that goes well."""

    def __init__(self, sampler: Any, most: int) -> None:
        """
        Guess for an iterator.

        Args:
            sampler: What torch draws requests from: of batches, or of indices without them.
            most: How many requests a guess has at most.
        """
        self._sampler = sampler
        self._most = most
        self._wrong_in_a_row = 0
        self._is_given_up = False
        self._began_at = time.monotonic()

    def begin_epoch(self, was_right: bool | None) -> None:
        """Begin an epoch, and note whether the guess of it came true; None: there was none."""
        self._began_at = time.monotonic()
        if was_right is None:
            return
        self._wrong_in_a_row = 0 if was_right else self._wrong_in_a_row + 1
        if self._wrong_in_a_row >= _WRONG_IN_A_ROW:
            self._is_given_up = True

    def guess(self) -> list[Any]:
        """List the first requests of the next epoch; none if they cannot be foretold."""
        if self._is_given_up:
            return []
        epoch_s, cpu_before = time.monotonic() - self._began_at, time.thread_time()
        try:
            requests = self._draw() if _changes_nothing(self._sampler) else []
        except Exception:
            # Of the user's dataset, such as its length: torch will raise what it has to.
            requests = []
        is_dear = time.thread_time() - cpu_before > _DEAR * epoch_s + _CHEAP_S
        self._is_given_up = not requests or is_dear or not all(map(_is_plain, requests))
        return [] if self._is_given_up else requests

    def _draw(self) -> list[Any]:
        with _put_aside(self._sampler), _in_next_epoch(self._sampler):
            return list(itertools.islice(iter(self._sampler), self._most))


def _changes_nothing(sampler: Any) -> bool:
    """
    Returns True if drawing from a sampler changes nothing but generators that can be put back.

    Even a copy of a user's sampler may draw from what it shares with the sampler itself: a module's
    generator, the dataset, other ranks. So it is never foretold.
    """
    return all(type(each) in _PURE for each in nested(sampler))


@contextmanager
def _put_aside(sampler: Any) -> Iterator[None]:
    """Put every generator that may be drawn from back to where it was."""
    before = draws.random_states()
    owned = [getattr(each, "generator", None) for each in nested(sampler)]
    states = [(own, own.get_state()) for own in owned if isinstance(own, torch.Generator)]
    try:
        yield
    finally:
        draws.set_random_states(before)
        for own, state in states:
            own.set_state(state)


@contextmanager
def _in_next_epoch(sampler: Any) -> Iterator[None]:
    """Let samplers that are told the number of the epoch be in the one after theirs."""
    told = [each for each in nested(sampler) if isinstance(each, DistributedSampler)]
    for each in told:
        each.epoch += 1
    try:
        yield
    finally:
        for each in told:
            each.epoch -= 1


def _is_plain(request: Any) -> bool:
    """Returns True for what can be compared without running code of the user's."""
    kind = type(request)
    if kind is list or kind is tuple:
        return set(map(type, request)) <= _PLAIN or all(map(_is_plain, request))
    return kind in _PLAIN


def is_same(guessed: Any, drawn: Any) -> bool:
    """Returns True if a request was guessed, which is plain: of the same types, and equal."""
    if type(drawn) is Indices:
        drawn = drawn.tolist()
    if type(guessed) is not type(drawn):
        return False
    if type(guessed) not in (list, tuple):
        return bool(guessed == drawn)
    if set(map(type, guessed)) == set(map(type, drawn)) == {int}:
        return bool(guessed == drawn)
    return len(guessed) == len(drawn) and all(map(is_same, guessed, drawn))

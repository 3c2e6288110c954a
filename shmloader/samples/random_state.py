"""
What a sample may draw from: the three global generators, and the `rng()` of this thread.

Here are their states, to be saved and put back. What seeds them is in the worker's folder.
"""

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy
import torch


class Turn(Protocol):
    """A thread's part in fetching one batch, of which `rng()` is made."""

    def rng(self) -> numpy.random.Generator:
        """The generator of the sample that is fetched now."""

    def save(self) -> Callable[[], None]:
        """Save where that generator is. Returns what puts it back."""

    def at(self, position: int | None) -> None:
        """Of the whole batch that was asked for, a sample is fetched now; None: that is over."""


class _Here(threading.local):
    turn: Turn | None = None


here = _Here()  # the turn of this thread; None: no batch is fetched whose draws are its own


def seed_anew() -> None:
    """Seed as a new process is, in one that was forked; `random` does so by itself."""
    numpy.random.seed()
    torch.default_generator.seed()  # not torch.seed(), which asks every accelerator


def random_states() -> tuple[Any, ...]:
    """The states of this process's three random number generators."""
    return (
        random.getstate(),
        numpy.random.get_state(legacy=False),
        torch.get_rng_state().numpy().tobytes(),
    )


def set_random_states(states: tuple[Any, ...]) -> None:
    """Set the random number generators to states that `random_states` returned."""
    python_state, numpy_state, torch_state = states
    random.setstate(python_state)
    numpy.random.set_state(numpy_state)
    torch.set_rng_state(torch.frombuffer(bytearray(torch_state), dtype=torch.uint8))


def saved() -> Callable[[], None]:
    """Save the three generators, and this thread's `rng()`. Returns what puts them back."""
    turn = here.turn
    put_rng_back = None if turn is None else turn.save()
    states = random_states()

    def put_all_back() -> None:
        set_random_states(states)
        if put_rng_back is not None:
            put_rng_back()

    return put_all_back


@contextmanager
def put_back() -> Iterator[None]:
    """Leave the three generators, and this thread's `rng()`, as they were before the block."""
    put_all_back = saved()
    try:
        yield
    finally:
        put_all_back()


def in_turn(indices: Iterable[Any]) -> Iterator[Any]:
    """Yield the indices of a batch; while one is in use, `rng()` is that sample's own."""
    turn = here.turn
    if turn is None:
        yield from indices
        return
    try:
        for position, index in enumerate(indices):
            turn.at(position)
            yield index
    finally:
        turn.at(None)

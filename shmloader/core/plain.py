"""
What a loader without workers needs of the core, in Python: for systems where it cannot be built.

Each name does what the compiled one does, but that no state is made of the batches that count.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch


def is_plain(value: Any) -> bool:
    """Returns True for a plain strided CPU tensor that needs no gradient and is no lazy view."""
    return (
        type(value) is torch.Tensor
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and not (value.requires_grad or value.is_conj() or value.is_neg())
    )


class Samples:
    """The indices of a batch for torch's fetcher, which takes one and then fetches its sample."""

    def __init__(self, indices: list[Any]) -> None:
        """Note the samples of a batch."""
        self._indices = indices
        self.position = 0

    def __len__(self) -> int:
        return len(self._indices)

    def __iter__(self) -> "Samples":
        self.position = 0
        return self

    def __next__(self) -> Any:
        if self.position >= len(self._indices):
            raise StopIteration
        self.position += 1
        return self._indices[self.position - 1]


class Delivered:
    """The batches of one epoch, as far as their numbers are needed."""

    def __init__(self, workers: int, is_numbered: bool) -> None:
        """Begin an epoch."""
        self.drawn_task = -1

    def number_of(self, task: int) -> int:
        """The number of a batch in its epoch."""
        return task

    def draw_in_hand(self, requests: Iterator[Any], order: Any) -> "InHand":
        """Draw the next request, and take it in hand as if it were its batch."""
        hand = InHand(next(requests))
        self.drawn_task += 1
        return hand


class InHand:
    """A batch that next() has made; as the compiled class, but that none is counted."""

    error: BaseException | None = None

    def __init__(self, batch: Any = None, holder: Any = None, key: Any = None) -> None:
        """Have a batch in hand."""
        self.batch, self.holder, self.key = batch, holder, key

    def hand_out(self) -> Any:
        """Return the batch or raise the error."""
        if self.holder is not None:
            del self.holder[self.key]
            self.holder = None
        batch, error = self.batch, self.error
        self.leave_out()
        if error is not None:
            raise error
        return batch

    def leave_out(self) -> None:
        """Let it go, although next() goes on to the batch after it."""
        self.batch = self.error = None


class HandsOut:
    """The `__next__` of an iterator; the compiled class says what it has."""

    _make: Callable[[], InHand]
    _num_yielded: int

    def __next__(self) -> Any:
        yielded = self._num_yielded
        try:
            hand = self._make()
        except BaseException:
            self._num_yielded = yielded
            raise
        return hand.hand_out()

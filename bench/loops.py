"""A loop over batches, with a step of known cost and the times at which it asked and was given."""

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch


class Played(NamedTuple):
    """
    What became of a loop.

    Attributes:
        asked: When each next() was called; once more than batches came.
        came: When each batch did.
    """

    asked: list[float]
    came: list[float]

    def waits_s(self, first: int = 0) -> list[float]:
        """The seconds that each next() took, from batch number `first` on."""
        pairs = zip(self.asked, self.came, strict=False)
        return [came - asked for asked, came in pairs][first:]

    def steps_s(self, first: int = 0) -> list[float]:
        """The seconds that each step took."""
        pairs = zip(self.came, self.asked[1:], strict=True)
        return [asked - came for came, asked in pairs][first:]


def play(
    batches: Iterable,
    step: Callable[[Any], object],
    enough: Callable[[Played], bool] = lambda _: False,
) -> Played:
    """Take a step with each batch, to the end of the batches or until it is enough."""
    played = Played([time.perf_counter()], [])
    for batch in batches:
        played.came.append(time.perf_counter())
        step(batch)
        del batch
        played.asked.append(time.perf_counter())
        if enough(played):
            break
    return played


def step_of(
    pause: Callable[[], object] = int, threads: int = 0, look: Callable[[Any], object] = id
) -> Callable:
    """Make a step that looks at its batch, computes in some threads, and makes a pause."""
    torch.set_num_threads(max(1, threads))
    matrix = torch.rand(256, 256)

    def step(batch: Any) -> None:
        look(batch)
        if threads:
            _ = matrix @ matrix
        pause()

    return step


class Counted:
    """A look at batches with a label at their end, which count up from 0."""

    def __init__(self) -> None:
        self._labels: list[torch.Tensor] = []

    def __call__(self, batch: Any) -> None:
        self._labels.append(batch[-1].clone())

    @property
    def mistake(self) -> str:
        """What is wrong, or nothing."""
        labels = torch.cat(self._labels)
        is_right = torch.equal(labels, torch.arange(len(labels)))
        return "" if is_right else "the batches are not those of the sampler"

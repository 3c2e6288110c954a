"""What a sampler that was brought to a place draws from there on."""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch


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

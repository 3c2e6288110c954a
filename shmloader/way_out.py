"""
A way out of the loader, and what all ways need: how a batch gets from its slot to the user.

An iterator has one way for its whole life, calls these hooks, and never asks which one it has.
"""

import contextlib
import math
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch._utils import ExceptionWrapper

from shmloader.errors import leave_out_levels

_NO_MODE = contextlib.nullcontext()


class WayOut:
    """
    What an iterator calls, on the thread that iterates or closes; here for what needs no more.

    Attributes:
        deliver: Turns a received answer into its batch, or into an `ExceptionWrapper` in its place.
    """

    deliver: Callable[[Any], Any]

    def look(self) -> None:
        """Say what is to be said before a batch is in hand, which an error would lose."""

    def waiting(self) -> float:
        """Use the time before the trainer parks. Returns for how long it may; 0: receive again."""
        return math.inf

    def rest(self) -> None:
        """Let go of the slots' pages at the end of an epoch, so that they can be given back."""

    def end_epoch(self) -> None:
        """Raise what went wrong with batches that were handed out: no other one comes after it."""

    def close(self) -> bool:
        """Let go of the segment. Returns True if it may be used again."""
        return True


class Failure(ExceptionWrapper):
    """An error of the trainer's own in a batch's place, for torch to raise."""

    def __init__(self, error: Exception) -> None:
        leave_out_levels(error)
        self.error = error

    def reraise(self) -> NoReturn:
        """Raise the error as it is."""
        raise self.error


def ordinary_tensors() -> contextlib.AbstractContextManager[Any]:
    """
    Have tensors that are made inside be no inference tensors, of which autograd saves none.

    A batch that is copied ahead may be handed out when the mode around next() is over.
    """
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else _NO_MODE


def transformed(batch: Any, transform: Callable[[Any], Any]) -> Any:
    """Return what a user's function makes of a batch that is on its device."""
    try:
        return transform(batch)
    except StopIteration as error:
        raise RuntimeError("the transform of the Device raised StopIteration") from error

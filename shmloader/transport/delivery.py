"""
Delivery: how a batch gets from its slot to the user, and what every such path needs.

An iterator has one of them for its whole life, calls these hooks, and never asks which one it has.
"""

import contextlib
import math
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch._utils import ExceptionWrapper

from shmloader.errors import is_own, leave_out_levels

_NO_MODE = contextlib.nullcontext()


class Delivery:
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


class Failure(ExceptionWrapper):
    """An error of the trainer's own in a batch's place, for torch to raise."""

    def __init__(self, error: BaseException) -> None:
        leave_out_levels(error)
        self.error, self.exc_type = error, type(error)

    def reraise(self) -> NoReturn:
        """Raise the error as it is."""
        raise self.error


class PinningFailed(ExceptionWrapper):
    """What pinning a batch has raised, in its place and in torch's words."""


def error_in(failed: ExceptionWrapper) -> BaseException:
    """Make the error that stands in a batch's place; an interrupt meanwhile is none of it."""
    try:
        failed.reraise()
    except BaseException as error:
        if is_own(error, failed.reraise):
            return error
        raise
    raise AssertionError("it has raised")


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

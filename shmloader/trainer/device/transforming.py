"""A user's function, called on a batch that is on its device."""

from collections.abc import Callable
from typing import Any


def transformed(batch: Any, transform: Callable[[Any], Any]) -> Any:
    """
    Return what a function makes of a batch.

    Raises:
        RuntimeError: It raised StopIteration, which would end the epoch without a word. Python's
            generators do the same.
    """
    try:
        return transform(batch)
    except StopIteration as error:
        raise RuntimeError("the transform of the Device raised StopIteration") from error

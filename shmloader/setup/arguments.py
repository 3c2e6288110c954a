"""What functions may be given: an error says which argument, and what it takes."""

import numbers
from typing import Any

import numpy


def check_count(
    name: str, value: Any, least: int = 1, most: int | None = None, kind: str = "an int"
) -> int:
    """Return a number as an int."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} should be {kind}, but got {value!r}")
    number = int(value)
    if number < least:
        raise ValueError(f"{name} should be at least {least}, but got {number}")
    if most is not None and number > most:
        raise ValueError(f"{name} should be at most {most}, but got {number}")
    return number


def check_seconds(name: str, value: Any, instead: str) -> float:
    """Return a longest wait as a float; the error says how to have none instead."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} should be a number of seconds, or {instead}, but got {value!r}")
    seconds = float(value)
    if not seconds >= 0:  # as NaN is not
        raise ValueError(f"{name} should be at least 0 seconds, or {instead}, but got {value}")
    return seconds


def check_flag(name: str, value: Any) -> bool:
    """Return a bool."""
    if not isinstance(value, (bool, numpy.bool_)):
        raise TypeError(f"{name} should be a bool, but got {value!r}")
    return bool(value)

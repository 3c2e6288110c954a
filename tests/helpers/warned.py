"""Warnings as tests count them: without Python's own at a fork."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

AT_A_FORK = "This process .* is multi-threaded, use of fork"


@contextlib.contextmanager
def recorded() -> Iterator[list[warnings.WarningMessage]]:
    """
    Record every warning, but not the one of a fork beside threads.

    Python 3.12 and later give it once torch has started a thread, for torch's workers as for ours.
    """
    with warnings.catch_warnings(record=True, action="always") as caught:
        warnings.filterwarnings("ignore", AT_A_FORK, DeprecationWarning)
        yield caught

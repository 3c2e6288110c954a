"""
The contenders, by name; a new one is an entry in a module here, and a module in `_MODULES`.

What only some of them need is imported when they are asked for.
"""

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

BASELINE = "torch_fd"
SUBJECT = "ours"
LIMIT = "limit"
BEFORE = "before"  # runs only if it is told which checkout, so it is in no list

OWN = (SUBJECT, BASELINE, "torch_fs", LIMIT)
_MODULES = ("torches", "limit", "queues", "grain", "granular", "spdl")


class Contender(NamedTuple):
    """
    A way to load batches.

    Attributes:
        label: Its name in tables.
        make_loader: Makes, for `(workload, workers)`, an iterable of batches with a `close()`; its
            workers live on, and are forked where they can be.
        available: Says why it cannot run here, or None.
        refuses: Says why it cannot do a workload, or None.
        measure: If it delivers no batches: returns, for `(workload, workers, epochs)`, the record.
    """

    label: str
    make_loader: Callable[..., Any] | None = None
    available: Callable[[], str | None] = lambda: None
    refuses: Callable[[Any], str | None] = lambda _: None
    measure: Callable[..., dict] | None = None


def names() -> list[str]:
    """List the contenders: ours, torch, the limit, then the peers by name."""
    return [*OWN, *sorted(set(contenders()) - {*OWN, BEFORE})]


@cache
def contenders() -> dict[str, Contender]:
    """Import and list all of them."""
    modules = [importlib.import_module(f"{__name__}.{name}") for name in _MODULES]
    return {name: each for module in modules for name, each in module.CONTENDERS.items()}

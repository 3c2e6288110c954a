"""
How many processes may look for news before they park: as many as there are cores for.

csrc/looks.c says when they do. Here is the bound from above: this process and all workers that it
has, with the threads in which they fetch, need a core each; otherwise none of them looks.
"""

import os
import weakref
from typing import Any, NamedTuple

from shmloader.core import Ledger
from shmloader.processes import scheduling


class _Others(NamedTuple):
    """Processes or threads: who has them, how many there are, the ledger of those that work."""

    owner: "weakref.ref[Any]"
    number: int
    ledger: "weakref.ref[Ledger] | None"


# By the owner's id, and weakly: an interrupt may come before they are taken out. A plain dict,
# because another thread may add one while these are listed.
_others: dict[int, _Others] = {}
os.register_at_fork(after_in_child=_others.clear)  # a child has no workers but its own


def begin(owner: Any, count: int, ledger: Ledger | None = None) -> None:
    """Count so many processes or threads beside this one, as long as their owner lives."""
    reference = None if ledger is None else weakref.ref(ledger)
    _others[id(owner)] = _Others(weakref.ref(owner), count, reference)
    _tell_all()


def end(owner: Any) -> None:
    """Count them no more."""
    _others.pop(id(owner), None)
    _tell_all()


def count_others(owner: Any) -> int:
    """How many processes and threads of this process work for others than an owner."""
    others = [each for each in _living() if each.owner() is not owner]
    return sum(each.number for each in others if _works(each))


def _works(each: _Others) -> bool:
    """Returns True unless it is known that they have nothing to do."""
    ledger = None if each.ledger is None else each.ledger()
    return ledger is None or any(ledger.loads())


def may_look() -> bool:
    """Returns True if there is a core for each."""
    return scheduling.cores() >= 1 + sum(each.number for each in _living())


def _living() -> list[_Others]:
    for key, each in list(_others.items()):
        if each.owner() is None:
            _others.pop(key, None)
    return list(_others.values())


def _tell_all() -> None:
    references = [each.ledger for each in _living() if each.ledger is not None]
    ledgers = [ledger for ledger in (reference() for reference in references) if ledger is not None]
    if ledgers:
        may = may_look()
        for ledger in ledgers:
            ledger.allow_looks(may)

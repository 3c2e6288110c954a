"""
The contenders, one module each, found by being here.

A module has `label` (its name in tables) and `make_loader(workload, workers, persistent, context)`,
which returns an iterable of batches with a `close()`. One that cannot run everywhere has
`available()`, one that cannot do every workload `refuses(workload)`: the reason, or None.
A contender that delivers no batches has `measure(workload, workers, epochs)` instead and
returns the record itself. Modules whose name begins with an underscore are helpers.
"""

import importlib
import pkgutil
from types import ModuleType

BASELINE = "torch_fd"
SUBJECT = "ours"
LIMIT = "limit"
BEFORE = "before"  # runs only if it is told which checkout, so it is in no list

_FIRST = (SUBJECT, BASELINE, "torch_fs", LIMIT)


def own() -> list[str]:
    """List the contenders that need nothing beside torch and this package."""
    return [name for name in names() if name in _FIRST]


def names() -> list[str]:
    """List the contenders: ours, torch, the limit, then the peers by name."""
    found = {each.name for each in pkgutil.iter_modules(__path__) if not each.name.startswith("_")}
    found.discard(BEFORE)
    return [name for name in _FIRST if name in found] + sorted(found.difference(_FIRST))


def load(name: str) -> ModuleType:
    """Import the module of one contender."""
    return importlib.import_module(f"{__name__}.{name}")


def why_not(contender: ModuleType) -> str | None:
    """Say why a contender cannot run here, or None."""
    return contender.available() if hasattr(contender, "available") else None

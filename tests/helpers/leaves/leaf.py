"""A row of the table of leaves."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Elements of most leaves: 4 MB of float32.
COUNT = 1 << 20


@dataclass(frozen=True)
class Leaf:
    """
    A kind of leaf.

    Attributes:
        make: Makes one of some megabytes.
        needs: Modules without which it cannot be made.
        in_slot: True if all its memory lies in the slot; False if none does.
        why: If it does not lie there, or is no faster than with torch: the reason.
        holds_tensors: True if tensors are in it, which torch's loader moves when it sends them.
        torch_fails: What torch's loader does wrong; its batch is no measure then.
    """

    name: str
    make: Callable[[], Any]
    needs: tuple[str, ...] = ()
    in_slot: bool = True
    why: str = ""
    holds_tensors: bool = False
    torch_fails: str = ""

    def missing(self) -> str | None:
        """Name the first module that is not installed, or None."""
        for module in self.needs:
            if importlib.util.find_spec(module.partition(".")[0]) is None:
                return module
        return None


def module(name: str) -> Any:
    """Import a module that only some rows need."""
    return importlib.import_module(name)

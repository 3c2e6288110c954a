"""Loaders of a framework's own class, in each way."""

from __future__ import annotations

from typing import Any

import torch.utils.data

import shmloader

from .ways import IMPORT, WRAP, Way


def made(
    way: Way, kind: type[torch.utils.data.DataLoader[Any]], *given: Any, **options: Any
) -> Any:
    """
    Make a loader of a framework's class as a user of ours does.

    "import" is a class over ours and theirs: `class Served(TheirLoader, shmloader.DataLoader)`.
    """
    if way == IMPORT:
        kind = type("Served", (kind, shmloader.DataLoader), {})
    loader = kind(*given, **options)
    return shmloader.wrap(loader) if way == WRAP else loader

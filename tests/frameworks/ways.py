"""The ways to train with our loader; whose iterators were really made, and where batches lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch.utils.data
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

import shmloader
from shmloader.trainer.iterator import RingIterator
from tests.helpers.segments import in_slots

TorchLoader = torch.utils.data.DataLoader


@dataclass
class Made:
    """How many iterators with workers were made: ours, and those of torch's own class."""

    ours: int = 0
    torchs: int = 0


@contextmanager
def spied() -> Iterator[Made]:
    """Count the iterators that are made in this process."""
    made = Made()

    def counting(kind: type, field: str) -> Callable[..., None]:
        init = kind.__init__

        def __init__(self: Any, *arguments: Any, **options: Any) -> None:
            setattr(made, field, getattr(made, field) + 1)
            init(self, *arguments, **options)

        return __init__

    # RingIterator calls the constructor of their common base, so none is counted twice.
    kinds = {RingIterator: "ours", _MultiProcessingDataLoaderIter: "torchs"}
    before = {kind: kind.__init__ for kind in kinds}
    for kind, field in kinds.items():
        kind.__init__ = counting(kind, field)
    try:
        yield made
    finally:
        for kind, init in before.items():
            kind.__init__ = init


@contextmanager
def installed() -> Iterator[None]:
    """Serve every loader of torch's class for a while."""
    with installed_with():
        yield


@contextmanager
def installed_with(**options: Any) -> Iterator[None]:
    shmloader.install(**options)
    try:
        yield
    finally:
        shmloader.uninstall()


@dataclass(frozen=True)
class Way:
    """
    One way in which a user gets batches.

    Args:
        name: What the user writes.
        loader: Makes a loader, from a dataset and torch's options.
        active: The context in which the user's program runs.
        like: The way that has the same losses; None: torch's.
    """

    name: str
    loader: Callable[..., Any]
    active: Callable[[], AbstractContextManager[Any]] = nullcontext
    like: Way | None = None

    def __str__(self) -> str:
        return self.name


def wrapped(dataset: Any, **options: Any) -> Any:
    return shmloader.wrap(TorchLoader(dataset, **options))


TORCH = Way("torch", TorchLoader)
IMPORT = Way("import", shmloader.DataLoader)
WRAP = Way("wrap", wrapped)
INSTALL = Way("install", TorchLoader, installed)
BY_BATCH = Way("by batch", TorchLoader, partial(installed_with, seed_by="batch"))
# Whoever fetches a batch, and whenever: the draws are the batch's.
FREELY = {"assignment": "dynamic", "seed_by": "batch"}
FREE = Way("dynamic", TorchLoader, partial(installed_with, **FREELY), BY_BATCH)
WAYS = (IMPORT, WRAP, INSTALL, FREE)
# Workers that a preloaded server forks, as they are from Python 3.14 on.
BY_SERVER = Way("forkserver", partial(TorchLoader, multiprocessing_context="forkserver"), installed)


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


def assert_lie_in_slots(loader: Any, leaves: Callable[[Any], list[torch.Tensor]]) -> None:
    """Check that each leaf of each batch lies in its slot, none is copied out, no slot is lost."""
    with loader:
        for batch in loader:
            assert all(in_slots(leaves(batch)))
            assert 1 == len(loader.held())
        stats = loader.stats()
    assert len(loader) == stats.batches
    assert (0, 0) == (stats.spilled, stats.retired)

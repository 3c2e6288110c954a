"""
Loaders with torch's signature: torch's own by both strategies, torchdata's, and ours.

file_descriptor hands a descriptor for each tensor over by a socket, file_system shares a name.
torchdata's StatefulDataLoader is torch's transport, with a state taken at every batch. Ours has its
defaults: nothing is tuned for a workload. `before` is another checkout's shmloader, beside this
one's in the same run: everything but the package is this checkout's, run.py puts the other first.
"""

import importlib
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch.multiprocessing
from torch.utils.data import DataLoader

from bench.contenders import Contender
from bench.driver import missing
from bench.loads.pools import Workload
from bench.report.machine import CHECKOUT


class Closable:
    """Closes a loader that inherits torch's; workers stop as in torch's destructor."""

    _iterator: Any

    def close(self) -> None:
        """Stop the workers."""
        iterator, self._iterator = self._iterator, None
        if iterator is not None:
            iterator._shutdown_workers()


class TorchLoader(Closable, DataLoader):
    """torch's DataLoader with a `close()`."""


def _make(
    kind: type[DataLoader], workload: Workload, workers: int, strategy: str | None = None
) -> DataLoader:
    """Make a loader for a workload; strategy: how torch's transport shares tensors."""
    if strategy:
        _use(strategy)
    return kind(
        workload.dataset(),
        batch_size=workload.batch_size,
        collate_fn=workload.collate_fn,
        num_workers=workers,
        persistent_workers=True,
        multiprocessing_context="fork",
        worker_init_fn=partial(_use, strategy) if strategy else None,
    )


def _use(strategy: str, worker: int | None = None) -> None:
    """Set the sharing strategy of this process; `worker` is what torch passes and is not needed."""
    torch.multiprocessing.set_sharing_strategy(strategy)


def _make_ours(*given: Any, **options: Any) -> DataLoader:
    # Imported only when it is asked for, so that a process may choose which.
    return _make(importlib.import_module("shmloader").DataLoader, *given, **options)


def _ours_missing() -> str | None:
    try:
        importlib.import_module("shmloader").DataLoader  # noqa: B018
    except (ImportError, AttributeError) as error:
        return f"shmloader is not built: {error}"
    return None


def _before_missing() -> str | None:
    """The package has to be another checkout's."""
    package = find_spec("shmloader")
    if package and Path(package.origin).resolve().is_relative_to(CHECKOUT):
        return "this is this checkout's shmloader: `python -m bench --before PATH` names another"
    return _ours_missing()


def _make_torchdata(*given: Any, **options: Any) -> DataLoader:
    base = importlib.import_module("torchdata.stateful_dataloader").StatefulDataLoader
    kind = type("ClosableLoader", (Closable, base), {})
    return _make(kind, *given, **options, strategy="file_descriptor")


CONTENDERS = {
    "ours": Contender("shmloader", _make_ours, _ours_missing),
    "before": Contender("before", _make_ours, _before_missing),
    "torch_fd": Contender("torch fd", partial(_make, TorchLoader, strategy="file_descriptor")),
    "torch_fs": Contender("torch fs", partial(_make, TorchLoader, strategy="file_system")),
    "torchdata": Contender(
        "torchdata", _make_torchdata, partial(missing, "torchdata.stateful_dataloader")
    ),
}

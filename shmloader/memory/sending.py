"""
Batches that go on to another process by torch.multiprocessing.

torch sends CPU memory by moving its storage to memory that can be shared, in place. An ndarray or
another export of that storage does not move with it: it would still point at the slot, or at the
spilled batch, which is given up because its last alias is gone. So of a storage behind a lease a
clone is sent. Tensors, parameters, subclasses and typed storages are all sent by their untyped
storage, so it is the only type with a reducer of ours.
"""

import multiprocessing.context
import weakref
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions

from shmloader.core import is_behind_lease

# Popen object -> the clones among the arguments of the process that it starts. torch passes the
# bare number of a clone's descriptor, so the clone is kept until the child has that descriptor.
_kept: weakref.WeakKeyDictionary[Any, list[torch.UntypedStorage]] = weakref.WeakKeyDictionary()


def install() -> None:
    """Send clones of storages behind a lease, from this process, from now on."""
    ForkingPickler.register(torch.UntypedStorage, _reduce_storage)


def _reduce_storage(storage: torch.UntypedStorage) -> Any:
    if storage.device.type == "cpu" and storage.nbytes() and is_behind_lease(storage.data_ptr()):
        clone: torch.UntypedStorage = torch.UntypedStorage._new_shared(storage.nbytes())
        # Tensors copy without Python's lock, storages with it.
        _bytes_of(clone).copy_(_bytes_of(storage))
        _keep(clone)
        storage = clone
    return reductions.reduce_storage(storage)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def _keep(clone: torch.UntypedStorage) -> None:
    """Keep a clone if a process is being started, at most until another one is."""
    popen = multiprocessing.context.get_spawning_popen()
    for started in [other for other in list(_kept) if hasattr(other, "sentinel")]:
        _kept.pop(started, None)
    if popen is not None:
        _kept.setdefault(popen, []).append(clone)

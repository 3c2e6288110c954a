"""The DataLoader as the client of the transport: what its workers run, and what they are asked."""

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any

from torch.utils.data._utils import signal_handling

from shmloader.core import Indices
from shmloader.worker import replacement, snapshot
from shmloader.worker.client import WorkerSpec

_INDICES_SHOWN = 16


def describe_request(index: Any) -> str:
    """Say for which batch a request is, as a part of a sentence."""
    if index is None:
        return "no batch"
    if isinstance(index, Indices):
        index = index.tolist()
    if isinstance(index, list) and index and index.count(None) == len(index):
        return f"the next {len(index)} samples of its iterable dataset"
    if not isinstance(index, (list, tuple)):
        return f"dataset index {index!r}"
    shown = ", ".join(map(repr, itertools.islice(index, _INDICES_SHOWN)))
    more = len(index) - _INDICES_SHOWN
    return f"dataset indices [{shown}" + (f", and {more} more]" if more > 0 else "]")


class LoaderClient:
    """What a loader's workers are: a `Client`, whose notes are snapshots."""

    kind = "DataLoader worker"
    unsendable = (
        "Got pickle error when attempting to start a worker Process: the dataset, collate_fn and "
        "worker_init_fn are pickled for the start methods spawn and forkserver. Define them at "
        "module level, or use multiprocessing_context='fork'."
    )
    describe = staticmethod(describe_request)
    succeed = staticmethod(replacement.run)
    # The last is what most programs import, which each worker imports too.
    modules: tuple[str, ...] = ("torch", replacement.__name__, "shmloader.dataloader")
    counting: tuple[bytes, ...] = (b"rebuild_storage_filename", b"rebuild_cuda_tensor")
    says_that_it_leaves = staticmethod(snapshot.says_that_it_leaves)

    def __init__(self, spec: WorkerSpec, preload: tuple[str, ...] | None = None) -> None:
        """Be asked."""
        self.spec = spec
        self.preload = preload
        self.leaves = spec.worker_bytes is not None
        self._is_watched = False

    def is_whole(self, note: bytes) -> bool:
        """Returns True if the dataset's state was told, or it has none."""
        # Fetching again leads there from the beginning of an epoch alone.
        return not snapshot.lacks_state(note)

    def growth(self, note: bytes) -> tuple[int, int] | None:
        """Return by how many bytes the worker had grown in how many answers."""
        return snapshot.position_of(note).grown

    # torch's handler of SIGCHLD

    def watch(self, pids: Sequence[int]) -> None:
        """Let torch's handler raise when a worker dies."""
        # Before the call: an interrupt between the two must not leave the pids set for ever.
        self._is_watched = True
        signal_handling._set_worker_pids(id(self), tuple(pids))  # type: ignore[attr-defined]
        signal_handling._set_SIGCHLD_handler()

    def unwatch(self) -> None:
        """Let torch's handler ignore these workers from now on."""
        if self._is_watched:
            with contextlib.suppress(ValueError):  # interrupted before they were set, or below
                signal_handling._remove_worker_pids(id(self))  # type: ignore[attr-defined]
            # Last, or an interrupt would leave them to the next object that has this id.
            self._is_watched = False

"""The DataLoader as the client of the transport: what its workers run, and what they are asked."""

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any

from torch.utils.data._utils import signal_handling

from shmloader.core import Indices, Past
from shmloader.errors import RestartWarning, shown, warn
from shmloader.transport.client import Words
from shmloader.worker import replacement, snapshot
from shmloader.worker.worker import WorkerSpec

_INDICES_SHOWN = 16


def describe_request(index: Any) -> str:
    """Say for which batch a request is, as a part of a sentence."""
    if index is None:
        return "no batch"
    if isinstance(index, Indices):
        index = index.tolist()
    if isinstance(index, list) and index and all(each is None for each in index):
        return f"the next {len(index)} samples of its iterable dataset"
    if not isinstance(index, (list, tuple)):
        return f"dataset index {shown(index)}"
    first = ", ".join(map(shown, itertools.islice(index, _INDICES_SHOWN)))
    more = len(index) - _INDICES_SHOWN
    return f"dataset indices [{first}" + (f", and {more} more]" if more > 0 else "]")


class LoaderClient:
    """What a loader's workers are: a `Client`, whose notes are snapshots."""

    kind = "DataLoader worker"
    words = Words(
        again="no batch changes",
        period="epoch",
        suspect="it was this batch each time, check these samples",
        anew="they begin with the dataset of this process, so no batch changes if the dataset did "
        "not change since iter()",
        without="or omit restarts and worker_bytes",
    )
    unsendable = (
        "Got pickle error when attempting to start a worker Process: the dataset, collate_fn and "
        "worker_init_fn are pickled for the start methods spawn and forkserver. Define them at "
        "module level, or use multiprocessing_context='fork'."
    )
    describe = staticmethod(describe_request)
    succeed = staticmethod(replacement.run)
    # The last is what most programs import, which each worker imports too.
    modules: tuple[str, ...] = ("torch", replacement.__name__, "shmloader.dataloader")
    says_that_it_leaves = staticmethod(snapshot.says_that_it_leaves)

    def __init__(self, spec: WorkerSpec, preload: tuple[str, ...] | None = None) -> None:
        self.spec = spec
        self.preload = preload
        self.leaves = spec.worker_bytes is not None
        self._is_watched = False

    def warn(self, message: str) -> None:
        """Warn of a restart, which has been made."""
        warn(message, RestartWarning)

    def is_place(self, past: Past) -> bool:
        """Returns True if the states of the dataset were told, or fetching again leads there."""
        if any(map(snapshot.is_lost, filter(None, (past.begun, past.latest)))):
            return False
        # Fetching again leads there from the beginning of an epoch alone.
        return past.begun is None or not snapshot.lacks_state(past.begun)

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

"""What serves one loader: its segments, and the iterators that use them."""

import threading
import weakref
from typing import Any

import torch.utils.data

from shmloader.errors import at_users_line
from shmloader.memory import sending
from shmloader.memory.pool import SegmentPool
from shmloader.metrics import Held, Stats
from shmloader.trainer import budget
from shmloader.trainer.iterator import RingIterator
from shmloader.trainer.options import Options


class Service:
    """
    Makes the iterators of one loader, which is of our class or of torch's, and counts for all.

    Attributes:
        pool: The loader's segments.
    """

    def __init__(self, keep_pages: bool = True) -> None:
        """Have no segment and no iterator yet."""
        self.pool = SegmentPool(keep_pages)
        # By id: another thread may add one while these are listed, which a WeakSet does not bear.
        self._iterators: weakref.WeakValueDictionary[int, RingIterator]
        self._iterators = weakref.WeakValueDictionary()

    def iterate(
        self, loader: Any, options: Options, kind: type[RingIterator] = RingIterator
    ) -> RingIterator:
        """
        Start an iterator of a loader with workers, as torch's `_get_iterator` does.

        Args:
            loader: A `torch.utils.data.DataLoader` with `num_workers > 0`.
            options: Those of the loader now.
            kind: The iterator's class.

        Raises:
            TypeError: The workers are threads.
        """
        reason = why_unserved(loader)
        if reason:
            raise TypeError(reason)
        at_users_line(loader.check_worker_number_rationality, torch.utils.data.DataLoader)
        sending.install()  # again: torch's init_reductions() takes it away
        # torch sets prefetch_factor if there are workers.
        shape = budget.shape_of(
            int(loader.num_workers),
            int(loader.prefetch_factor or 0),
            options.slots,
            options.slot_bytes,
            options.ring_bytes,
        )
        iterator = kind(loader, options, self.pool, shape)
        self._iterators[id(iterator)] = iterator
        return iterator

    def stats(self) -> Stats:
        """Count over all epochs and live iterators."""
        return self.pool.stats()

    def held(self) -> list[Held]:
        """List the batches that still occupy a slot."""
        return self.pool.held()

    def close(self, loader: Any) -> None:
        """Stop all workers and free all shared memory that no batch in use lies in."""
        for reference in self._iterators.valuerefs():
            iterator = reference()
            if iterator is not None:
                iterator._shutdown_workers()
        if isinstance(loader._iterator, RingIterator):
            loader._iterator = None
        self.pool.clear()


def why_unserved(loader: Any) -> str | None:
    """Say why the workers of a loader cannot fill slots; None if they can."""
    context = loader.multiprocessing_context
    process = getattr(context, "Process", None)
    if isinstance(process, type) and issubclass(process, threading.Thread):
        return (
            f"the workers of {type(context).__name__} are threads, and slots are filled by "
            "processes: use multiprocessing_context='fork', 'spawn' or 'forkserver' (with MONAI, "
            "use_thread_workers=False), or torch's own loader"
        )
    return None

"""One epoch of an iterator, from iter() to its end: what is known of it, and what was delivered."""

import threading
import time
from typing import Any, NamedTuple, Self

from torch.utils.data import BatchSampler, _DatasetKind

from shmloader.core import Delivered
from shmloader.order.samplers import TORCHS
from shmloader.processes import scheduling


class Start(NamedTuple):
    """
    When iter() was called, by the clocks of the thread that called it.

    Taken before workers are started, which with spawned ones can take longer than the epoch.
    """

    at_ns: int
    cpu_s: float
    thread: int
    delayed_ns: int

    @classmethod
    def now(cls) -> Self:
        thread = threading.get_native_id()
        _, delayed_ns = scheduling.scheduled_ns(thread)
        return cls(time.monotonic_ns(), time.process_time(), thread, delayed_ns)


class CurrentEpoch:
    """The epoch that an iterator is in."""

    def __init__(
        self, loader: Any, number: int, start: Start, workers: int, length: int | None = None
    ) -> None:
        is_numbered = loader._dataset_kind != _DatasetKind.Iterable
        self.number = number  # in the iterator's life, from 0, or on from that of a state
        self.start = start
        self.length = length  # how many batches it has; None if only user code could tell
        # Its batches; a part may put those of an earlier run before them.
        self.delivered = Delivered(workers, is_numbered)
        self.first_worker = 0  # that is asked first
        self.base_seed = -1  # the workers' seeds, once they have begun it
        self.shared_seed: int | None = None  # of data pipes
        self.snapshots: list[bytes | None] = []  # by worker, of its last answer, if any is kept


def length_of(loader: Any) -> int | None:
    """How many batches an epoch of a loader has; None if only user code could tell."""
    drawn: Any = loader.batch_sampler
    if drawn is None:
        return len(loader.sampler) if type(loader.sampler) in TORCHS else None
    is_torchs = type(drawn) is BatchSampler and type(drawn.sampler) in TORCHS
    return len(drawn) if is_torchs else None

"""
A loader of processes and one queue of pickled batches each: multiprocessing's or faster-fifo's.

The former writes each batch into a pipe. The latter is a ring of bytes under a mutex, into which
each batch is copied. Batches travel as ndarrays, which pickle faster than tensors.
"""

import importlib
import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from bench.contenders import Contender
from bench.contenders._peers import PREFETCH, Collate, Share, largest, restorer
from bench.driver import missing
from bench.loads.pools import Workload

_FIFO_WAIT_S = 120.0  # its own default, 10 s, is meant for small messages
_FIFO_SLACK = 1.05  # batches of `text` differ in size, and pickles have headers

_JOIN_S = 10


@dataclass
class QueueLoader:
    """
    Workers that send every n-th batch; the trainer takes them in turn.

    Attributes:
        make_queue: Makes a worker's queue from the multiprocessing context; it has `put` and `get`,
            and holds as many batches as torch would prefetch.
    """

    make_queue: Callable
    workload: Workload
    workers: int
    _processes: list = field(default_factory=list)

    def __post_init__(self) -> None:
        # Its samples are made before the fork, like every contender's.
        self._restore = restorer(self.workload)

    def __iter__(self) -> Iterator:
        if not self._processes:
            self._start()
        for command in self._commands:
            command.put("epoch")
        for turn in range(self.workload.batches):
            yield self._restore(self._queues[turn % self.workers].get())

    def close(self) -> None:
        """Stop the workers, which wait for an epoch if the last one was complete."""
        processes, self._processes = self._processes, []
        if not processes:
            return
        for command in self._commands:
            command.put(None)
        for process in processes:
            process.join(_JOIN_S)
            if process.is_alive():  # in the middle of an abandoned epoch
                process.terminate()
                process.join()

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        self._commands = [context.SimpleQueue() for _ in range(self.workers)]
        self._queues = [self.make_queue(context) for _ in range(self.workers)]
        for worker, pair in enumerate(zip(self._commands, self._queues, strict=True)):
            args = (self.workload, worker, self.workers, *pair)
            self._processes.append(context.Process(target=_work, args=args, daemon=True))
            self._processes[-1].start()


def _work(workload: Workload, worker: int, workers: int, commands, queue) -> None:
    share = Share(workload, worker, workers, Collate(workload, to_arrays=True))
    while commands.get():
        for batch in share:
            queue.put(batch)


class _Fifo:
    """Its queue with a longer wait and pickles of protocol 5."""

    def __init__(self, ring_bytes: int, context):
        queue = importlib.import_module("faster_fifo").Queue
        self._queue = queue(ring_bytes, PREFETCH, loads=pickle.loads, dumps=_dumps)

    def put(self, batch) -> None:
        self._queue.put(batch, timeout=_FIFO_WAIT_S)

    def get(self):
        return self._queue.get(timeout=_FIFO_WAIT_S)


def _dumps(batch) -> bytes:
    return pickle.dumps(batch, protocol=5)


def _with_fifos(workload: Workload, workers: int) -> QueueLoader:
    """Make the loader; its queues are as long as the workload's largest batch asks for."""
    pickle_bytes = largest(workload, Collate(workload, True), lambda batch: len(_dumps(batch)))
    ring_bytes = int(pickle_bytes * (PREFETCH + 1) * _FIFO_SLACK) + 4096
    return QueueLoader(partial(_Fifo, ring_bytes), workload, workers)


CONTENDERS = {
    "mp_queue": Contender(
        "mp queue", partial(QueueLoader, lambda context: context.Queue(PREFETCH))
    ),
    "faster_fifo": Contender("faster-fifo", _with_fifos, partial(missing, "faster_fifo")),
}

"""A loader made of processes and one queue of pickled batches each, for any kind of queue."""

import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from bench.contenders._peers import Collate, Share, restorer
from bench.loads.pools import Workload

_JOIN_S = 10


@dataclass
class QueueLoader:
    """
    Workers that send every n-th batch; the trainer takes them in turn.

    Attributes:
        make_queue: Makes a worker's queue from the multiprocessing context; it has `put` and `get`,
            and holds as many batches as torch would prefetch.
    """

    workload: Workload
    workers: int
    persistent: bool
    context: str
    make_queue: Callable
    _processes: list = field(default_factory=list)

    def __post_init__(self) -> None:
        self.workload.dataset()  # built before the fork, like every contender's

    def __iter__(self) -> Iterator:
        if not self._processes:
            self._start()
        for command in self._commands:
            command.put("epoch")
        restore = restorer(self.workload)
        for turn in range(self.workload.batches):
            yield restore(self._queues[turn % self.workers].get())
        if not self.persistent:
            self.close()

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
        context = multiprocessing.get_context(self.context)
        self._commands = [context.SimpleQueue() for _ in range(self.workers)]
        self._queues = [self.make_queue(context) for _ in range(self.workers)]
        self._processes = [
            context.Process(
                target=_work,
                args=(self.workload, worker, self.workers, command, queue),
                daemon=True,
            )
            for worker, (command, queue) in enumerate(
                zip(self._commands, self._queues, strict=True)
            )
        ]
        for process in self._processes:
            process.start()


def _work(workload: Workload, worker: int, workers: int, commands, queue) -> None:
    share = Share(workload, worker, workers, Collate(workload, to_arrays=True))
    while commands.get():
        for batch in share:
            queue.put(batch)

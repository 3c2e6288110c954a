"""
torch's tasks over the transport: its numbers, its messages, the seeds and ends of its datasets.

torch numbers the tasks of each epoch anew, and takes what answers them as pairs of such a number
and what stands for the batch; or messages of its own.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.utils.data._utils.worker import _IterableDatasetStopIteration, _ResumeIteration

from shmloader.core import Answer, Delivered, Kind, Order, Past, Verb
from shmloader.errors import WorkerBroken
from shmloader.transport.delivery import Delivery
from shmloader.transport.requests import ANY
from shmloader.transport.transport import Transport
from shmloader.transport.waiting import Waiting
from shmloader.transport.workers import Workers
from shmloader.worker.seeds import number_of_attempt

_END, _NOTHING, _TOLD = Kind.END, Kind.NOTHING, Verb.RESUMED

# (torch's task number, the answer), or a message of torch's own.
_Task = tuple[Any, Any]
# torch's record of the tasks that it expects, by number: (worker,), or (worker, data).
Record = Mapping[int, tuple[Any, ...]]


class Tasks:
    """The tasks of one iterator."""

    def __init__(
        self, transport: Transport, *, is_iterable: bool, is_seeded: bool, is_bound: bool
    ) -> None:
        self.epoch = -1  # the number of this one, from 0
        self._transport = transport
        self._is_iterable = is_iterable  # workers may say that they have reached their end
        self._is_seeded = is_seeded  # each request is numbered, for the worker's draws
        self._is_bound = is_bound  # the worker that torch chooses is the one that is asked
        workers = transport.segment.shape.workers
        self._delivered = Delivered(workers, not is_iterable)
        self._asked = [0] * workers  # in this epoch
        self._last_put = -1  # the number of the task that was sent last, or began to be
        self._ended: dict[int, int] = {}  # worker at its end in this epoch -> task number

    def put(self, worker: int, message: Any) -> None:
        """
        Queue what torch puts into an index queue: a task, a resume, or None to quit.

        A task is placed by the transport's next `pump`, once torch has recorded it.
        """
        if self._transport.received.is_closed:
            return  # the segment may be another iterator's by now
        if isinstance(message, tuple):
            number, index = message
            if number == self._last_put:
                # An interrupt came before torch had recorded it, which may record another worker.
                self._transport.forget([number])
            self._last_put = number
            numbers = (self.epoch, self._place_of(worker, number)) if self._is_seeded else None
            asked = worker if self._is_bound else ANY
            self._transport.send(asked, index, numbers, number)
        elif isinstance(message, _ResumeIteration):
            self._transport.tell(worker, Order.RESUME, message.seed)
        else:
            self._transport.tell(worker, Order.QUIT)

    def _place_of(self, worker: int, number: int) -> int:
        """The number of a batch in its epoch, by torch's number of its task."""
        if self._is_iterable:
            asked = self._asked[worker]
            self._asked[worker] += 1
            return number_of_attempt(worker, len(self._asked), asked)
        return self._delivered.number_of(number)

    # Epochs

    def resume(self, epoch: int, snapshots: list[bytes | None], pasts: list[Past]) -> None:
        """Go on after another run: by worker, its last snapshot there and where it goes on."""
        self.epoch = epoch
        progress = self._transport.ledger.progress
        assert len(snapshots) == len(pasts) == len(progress.pasts), "there is one for each worker"
        self._transport.snapshots[:] = snapshots
        progress.pasts[:] = pasts

    def begin_epoch(self, delivered: Delivered) -> None:
        """Begin an epoch whose batches are numbered by `delivered`; the last one's are let go."""
        self.epoch += 1
        self._delivered = delivered
        self._asked = list(delivered.by_worker)
        self._ended.clear()
        self._last_put = -1
        self._transport.abandon()

    # Answers

    def receive(self, pending: Record, wanted: int | None, active: Sequence[bool]) -> _Task | None:
        """
        Take the next answer for torch.

        Args:
            pending: torch's record of the tasks that it expects.
            wanted: The number of the task that it waits for; None for any.
            active: torch's record of the workers that have more to give, by worker.
        """
        while True:
            if self._ended and (end := self._find_end(pending, active)) is not None:
                return end
            answer = self._transport.receive()
            if answer is None:
                return self._find_again(pending, wanted)
            kind = answer.kind
            if kind is _TOLD:
                return _ResumeIteration(), None
            if kind is _END or kind is _NOTHING:
                self._note_end(answer)
            else:
                return answer.key, answer

    def _find_end(self, pending: Record, active: Sequence[bool]) -> _Task | None:
        """
        Find a worker at its end all of whose batches torch has, while torch waits for more of them.

        An end that overtakes a batch makes torch drop that batch.
        """
        for worker, number in self._ended.items():
            is_news = number in pending and active[worker]
            if is_news and (worker,) not in map(pending.get, self._transport.received.by_key):
                return number, _IterableDatasetStopIteration(worker)
        return None

    def _find_again(self, pending: Record, wanted: int | None) -> _Task | None:
        """Find an answer that was handed over before and lost to an interrupt."""
        received = self._transport.received.by_key
        if wanted is None:
            # Out of order nothing is kept for later, so whatever is here was lost.
            wanted = next((number for number in received if number in pending), None)
        if wanted is None or wanted not in received or len(pending.get(wanted, ())) != 1:
            return None
        return wanted, received[wanted]

    def _note_end(self, answer: Answer) -> None:
        """
        Note that a worker has reached its end, or that it skipped a request behind that.

        Raises:
            WorkerBroken: The answer loses a batch: an impossible end, or nothing before the end.
        """
        # First: once the slot is free, an end is recorded nowhere else.
        worker, kind = answer.worker, answer.kind
        if kind is _END and self._is_iterable:
            self._ended[worker] = answer.key
        is_at_end = worker in self._ended or self._transport.has_sent(worker, _END)
        if not self._is_iterable or not is_at_end:
            raise WorkerBroken(
                f"worker {worker} sent {answer.kind.value!r} instead of a batch; its memory was "
                "overwritten, perhaps by native code of the dataset"
            )
        self._transport.discard(answer)


def closed() -> RuntimeError:
    """Say that batches are lost because the loader was closed."""
    return RuntimeError(
        "the loader was closed, by this thread or another, while batches of this iterator were "
        "outstanding: call iter(loader) for a new one"
    )


class BatchWait(Waiting):
    """Waits for the answers of one iterator."""

    closed = staticmethod(closed)

    def __init__(
        self, tasks: Tasks, transport: Transport, processes: Workers, delivery: Delivery
    ) -> None:
        super().__init__(transport, processes, delivery)
        self._tasks = tasks

    def next_task(
        self, timeout_s: float, tasks: Record, wanted: int | None, active: Sequence[bool]
    ) -> Any:
        """Take the next answer, as `Tasks.receive`, and wait for it, as `take`."""
        answer = None
        if not self._heals and not self.is_closing:
            # It is there already, as a rule, and this runs for each batch.
            answer = self._tasks.receive(tasks, wanted, active)
        if answer is None:
            answer = self.take(
                timeout_s, lambda: self._tasks.receive(tasks, wanted, active), tasks, active
            )
        return answer


# What torch, and code that looks into an iterator, uses for queues and an event


class DataQueue:
    """The result queue, for code that asks how full it is."""

    def __init__(self, qsize: Callable[[], int]) -> None:
        self.qsize = qsize

    def empty(self) -> bool:
        """Returns True if all was taken."""
        return self.qsize() == 0


class IndexQueue(DataQueue):
    """A worker's index queue; `put` sends a task, a resume, or None."""

    def __init__(self, tasks: Tasks, transport: Transport, worker_id: int) -> None:
        super().__init__(functools.partial(transport.requests.untaken, worker_id))
        self.put: Callable[[Any], None] = functools.partial(tasks.put, worker_id)


class DoneEvent:
    """The event that tells workers to leave."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._is_set = False

    def is_set(self) -> bool:
        """Returns True if the workers were told to leave."""
        return self._is_set

    def set(self) -> None:
        """Tell the workers to leave as soon as they look."""
        self._is_set = True
        self._transport.ledger.stop()

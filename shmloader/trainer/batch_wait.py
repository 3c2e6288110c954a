"""Waiting for what answers torch's tasks, while delivery is not idle."""

from collections.abc import Sequence
from typing import Any

from shmloader.order.telling import OF_DATASET, Telling
from shmloader.trainer.tasks import Record, Tasks
from shmloader.transport.delivery import Delivery
from shmloader.transport.transport import Transport
from shmloader.transport.waiting import Waiting
from shmloader.transport.workers import Workers


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
        self.replaying: set[int] = set()  # workers of a resumed epoch that fetch again first
        self._tasks = tasks
        self._replay_told = Telling(OF_DATASET)

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
        if self.replaying:
            self.replaying.difference_update(tasks.get(answer[0], ())[:1])
        return answer

    def parked(self) -> None:
        """Tell the logger now and then how far the worker is that has most to fetch again."""
        if self.replaying:
            found = (self._transport.notes.replayed(worker) for worker in self.replaying)
            done, total = max(found, key=lambda each: each[1] - each[0])
            self._replay_told.tell(done, total)

"""Waiting for what answers torch's tasks, while its way out is not idle."""

from collections.abc import Sequence
from typing import Any

from shmloader.order import telling
from shmloader.trainer.tasks import Record, Tasks
from shmloader.transport import waiting
from shmloader.transport.transport import Transport
from shmloader.transport.workers import Workers
from shmloader.way_out import WayOut


class Waiting(waiting.Waiting):
    """
    Waits for the answers of one iterator.

    Attributes:
        replaying: Workers of a resumed epoch that fetch again before they answer.
    """

    def __init__(self, tasks: Tasks, transport: Transport, processes: Workers, way: WayOut) -> None:
        super().__init__(transport, processes)
        self.replaying: set[int] = set()
        self._tasks = tasks
        self._way = way
        self._replay_told = telling.of_dataset()

    def closed(self) -> RuntimeError:
        """Say that batches are lost because the loader was closed."""
        return closed()

    def idle(self) -> float:
        """Have the way out use the time; as `WayOut.waiting`."""
        return self._way.waiting()

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


def closed() -> RuntimeError:
    """Say that batches are lost because the loader was closed."""
    return RuntimeError(
        "the loader was closed, by this thread or another, while batches of this iterator were "
        "still to come: call iter(loader) for a new one"
    )

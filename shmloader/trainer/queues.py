"""
What torch's scheduling, and code that looks into an iterator, uses for queues and an event.

They answer like multiprocessing's, and hand on to the transport.
"""

import functools
from collections.abc import Callable
from typing import Any

from shmloader.trainer.tasks import Tasks
from shmloader.transport.transport import Transport


class DataQueue:
    """
    What torch knows as the result queue, for code that asks how full it is.

    Attributes:
        qsize: Counts what was put and not taken yet.
    """

    def __init__(self, qsize: Callable[[], int]) -> None:
        self.qsize = qsize

    def empty(self) -> bool:
        """Returns True if all was taken."""
        return self.qsize() == 0


class IndexQueue(DataQueue):
    """
    What torch knows as a worker's index queue.

    Attributes:
        put: Sends a task, a resume, or None.
    """

    def __init__(self, tasks: Tasks, transport: Transport, worker_id: int) -> None:
        super().__init__(functools.partial(transport.requests.untaken, worker_id))
        self.put: Callable[[Any], None] = functools.partial(tasks.put, worker_id)


class DoneEvent:
    """What torch knows as the event that tells workers to leave."""

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

"""
What torch's scheduling, and code that looks into an iterator, uses for queues and an event.

They answer like multiprocessing's, and hand on to the transport.
"""

import functools
from collections.abc import Callable
from typing import Any

from shmloader.trainer.tasks import Tasks
from shmloader.transport.transport import Transport


class IndexQueue:
    """
    What torch knows as a worker's index queue.

    Attributes:
        put: Sends a task, a resume, or None.
    """

    def __init__(self, tasks: Tasks, transport: Transport, worker_id: int) -> None:
        self.put: Callable[[Any], None] = functools.partial(tasks.put, worker_id)
        self._transport = transport
        self._worker_id = worker_id

    def qsize(self) -> int:
        """Count the messages that the worker has not taken yet."""
        return self._transport.requests.untaken(self._worker_id)

    def empty(self) -> bool:
        """Returns True if the worker has taken all messages."""
        return self.qsize() == 0


class DataQueue:
    """What torch knows as the result queue, for code that asks how full it is."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def qsize(self) -> int:
        """Count the answers that wait for the trainer."""
        return self._transport.ready

    def empty(self) -> bool:
        """Returns True if no answer waits for the trainer."""
        return self.qsize() == 0


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

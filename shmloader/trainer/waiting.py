"""Waiting for answers: for the workers that owe them, and for what else ends meanwhile."""

import queue
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shmloader.order import telling
from shmloader.trainer.tasks import Tasks
from shmloader.transport.transport import Transport
from shmloader.transport.workers import Workers
from shmloader.way_out import WayOut


class Waiting:
    """
    Waits for the answers of one iterator.

    Attributes:
        is_closing: True once the loader is closed; set by any thread, seen by the one that waits.
        replaying: Workers of a resumed epoch that fetch again before they answer.
    """

    def __init__(self, tasks: Tasks, transport: Transport, processes: Workers, way: WayOut) -> None:
        self.is_closing = False
        self.replaying: set[int] = set()
        self._tasks = tasks
        self._transport = transport
        self._processes = processes
        self._way = way
        self._heals = transport.ledger.heals
        self._replay_told = telling.of_dataset()
        self._replayed = 0, 0  # by the worker that owed the oldest answer, at the last look

    def take(
        self,
        timeout_s: float,
        tasks: Mapping[int, tuple[Any, ...]],
        wanted: int | None,
        active: Sequence[bool],
    ) -> Any:
        """
        Take the next answer, as `Tasks.receive`, and wait for it.

        Args:
            timeout_s: How long at most, in seconds, from the last batch on that was fetched again
                before that answer.

        Raises:
            queue.Empty: None came in time, or a worker is dead.
            RuntimeError: The loader was closed.
        """
        deadline = None
        while True:
            if self.is_closing:
                raise closed()
            if self._heals and self._processes.heal_now_and_then(active, self._transport):
                deadline = None
            answer = self._tasks.receive(tasks, wanted, active)
            if answer is not None:
                if self.replaying:
                    self.replaying.difference_update(tasks.get(answer[0], ())[:1])
                return answer
            longest_s = self._way.waiting()
            if longest_s <= 0:
                continue
            now = time.monotonic()
            deadline = now + timeout_s if deadline is None else deadline
            if now >= deadline:
                if not self._processes.replace_hung(self._transport):
                    raise queue.Empty
                deadline = None
                continue
            longest_s = min(deadline - now, self._processes.slice_s, longest_s)
            self._tasks.wait(longest_s, tasks)
            if self._is_owed_anew(active):
                deadline = None

    def _is_owed_anew(self, active: Sequence[bool]) -> bool:
        """
        See to the workers.

        Returns:
            True if the one that owes the answer was replaced, or has got on with what it fetches
            again before that.

        Raises:
            queue.Empty: One is dead.
        """
        if self.replaying:
            self._tell_of_replay()
        if self._transport.ledger.unread:
            return False
        has_got_on = self._has_fetched_again()
        dead = self._processes.dead(active)
        if not dead:
            return has_got_on
        awaited = self._transport.awaited_worker()
        if not self._processes.heal_all(active):
            raise queue.Empty
        # Other deaths are no reason to wait longer for the worker that owes an answer.
        return has_got_on or awaited is None or awaited in dead

    def may_come_yet(
        self, error: Exception, active: Sequence[bool], give_up: Callable[[int], None]
    ) -> bool:
        """
        Returns True if an answer only takes longer, False if the error says why none comes.

        Args:
            give_up: Is told the workers that have died and are not replaced.

        Raises:
            RuntimeError: The loader was closed, or workers died.
        """
        if self.is_closing:
            raise closed() from None
        if not self._processes.heal_all(active):
            self._raise_of_the_dead(error, active, give_up)
        return isinstance(error, queue.Empty)

    def _raise_of_the_dead(
        self, error: Exception, active: Sequence[bool], give_up: Callable[[int], None]
    ) -> None:
        dead = self._processes.dead(active)
        explained = self._processes.explain(dead)
        for worker in dead:
            give_up(worker)
            self._tasks.forget_worker(worker)
        if explained:
            raise RuntimeError(explained) from error
        if dead:
            pids = ", ".join(str(self._processes.by_id[worker].pid) for worker in dead)
            raise RuntimeError(f"DataLoader worker (pid(s) {pids}) exited unexpectedly") from error

    def _has_fetched_again(self) -> bool:
        """Returns True if the worker that is awaited fetches again, and has got on with it."""
        worker, before = self._transport.awaited_worker(), self._replayed
        self._replayed = (0, 0) if worker is None else self._transport.notes.replayed(worker)
        return self._replayed != before

    def _tell_of_replay(self) -> None:
        """Tell the logger now and then how far the worker is that has most to fetch again."""
        found = (self._transport.notes.replayed(worker) for worker in self.replaying)
        done, total = max(found, key=lambda each: each[1] - each[0])
        self._replay_told.tell(done, total)


def closed() -> RuntimeError:
    """Say that batches are lost because the loader was closed."""
    return RuntimeError(
        "the loader was closed, by this thread or another, while batches of this iterator were "
        "still to come: call iter(loader) for a new one"
    )

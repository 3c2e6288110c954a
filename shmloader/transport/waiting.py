"""Waiting for answers: for the workers that owe them, and for what else ends meanwhile."""

import queue
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from shmloader import log
from shmloader.transport.delivery import Delivery
from shmloader.transport.transport import Transport
from shmloader.transport.workers import Workers

_AFTER_S = 5.0  # no batch has come
_BEGINNING = "the others import modules, unpickle the dataset or run your init function"


class _LongStart:
    """Tells once of workers whose first batch takes long, and what it waits for."""

    def __init__(self, transport: Transport, processes: Workers) -> None:
        self._transport = transport
        self._processes = processes
        self._is_told = False

    def look(self) -> None:
        """Tell of it if the first batch is late and waited for."""
        started_s = self._processes.started_s
        if self._is_told or started_s is None:
            return
        passed_s = time.monotonic() - started_s
        waiting = self._transport.requests.waiting
        if self._transport.ledger.oldest() != 0 and not (waiting and waiting[0][2] == 0):
            self._is_told = True  # the first batch has come
        elif passed_s >= _AFTER_S:
            self._is_told = True
            log.warn(
                "%s: no batch %.0f s after its workers were started: %s",
                *(self._transport.name, passed_s, self._describe()),
            )

    def _describe(self) -> str:
        seats = range(self._transport.segment.shape.workers)
        count, of = sum(map(self._transport.ledger.is_seated, seats)), self._processes.working
        doing = self._processes.doing
        if doing is None:
            doing = "the first batch is fetched" if count == of else _BEGINNING
        # A barrier or a queue of your init function may wait for more than there are at first.
        most = len(self._processes.by_id)
        more = f", of at most {most}" if most > of else ""
        return f"{count} of {of} workers{more} have started; {doing}{self._processes.suspicion()}"


class Waiting:
    """
    Waits for the answers of one transport, and keeps its workers alive meanwhile.

    Of `active`, which all methods take, a client says for each worker if it has more to give: the
    end of one that has not is no death.
    """

    def __init__(self, transport: Transport, processes: Workers, delivery: Delivery) -> None:
        self.is_closing = False  # set by any thread, seen by the one that waits
        self._transport = transport
        self._processes = processes
        self._delivery = delivery
        self._heals = transport.heals
        self._start = _LongStart(transport, processes)
        self._replayed = 0, 0  # by the worker that owed the oldest answer, at the last look

    # What a client may do meanwhile

    def idle(self) -> float:
        """Have the delivery use the time before a park; as `Delivery.waiting`."""
        return self._delivery.waiting()

    def closed(self) -> RuntimeError:
        """Say that answers are lost because nothing is waited for any more."""
        return RuntimeError("closed, by this thread or another, while responses were outstanding")

    def take(
        self,
        timeout_s: float,
        receive: Callable[[], Any],
        expected: Collection[Any],
        active: Sequence[bool],
    ) -> Any:
        """
        Take the next answer, by what `receive` returns, and wait for it.

        Args:
            timeout_s: How long at most, from the last answer on that was made again before it.
            expected: As for `Transport.wait`.

        Raises:
            queue.Empty: None came in time, or a worker is dead.
            RuntimeError: It is closed.
        """
        deadline = None
        while True:
            if self.is_closing:
                raise self.closed()
            if self._heals and self._processes.heal_now_and_then(active, self._transport):
                deadline = None
            answer = receive()
            if answer is not None:
                return answer
            longest_s = self.idle()
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
            self._transport.wait(longest_s, expected)
            if self._is_owed_anew(active):
                deadline = None

    def _is_owed_anew(self, active: Sequence[bool]) -> bool:
        """
        Returns True if the worker that owes the answer was replaced, or has got on towards it.

        Raises:
            queue.Empty: A worker is dead.
        """
        if self._transport.ledger.unread:
            return False
        self._start.look()
        has_got_on = self._has_got_on()
        dead = self._processes.dead(active)
        if not dead:
            return has_got_on
        awaited = self._transport.awaited_worker()
        if not self._processes.heal_all(active):
            raise queue.Empty
        # Other deaths are no reason to wait longer for the worker that owes an answer.
        return has_got_on or awaited is None or awaited in dead

    def _has_got_on(self) -> bool:
        worker, before = self._transport.awaited_worker(), self._replayed
        self._replayed = (0, 0) if worker is None else self._transport.notes.replayed(worker)
        return self._replayed != before

    def may_come_yet(
        self, error: Exception, active: Sequence[bool], give_up: Callable[[int], None]
    ) -> bool:
        """
        Returns True if an answer only takes longer, False if the error says why none comes.

        Raises:
            RuntimeError: It is closed, or workers died, which `give_up` is told if they stay dead.
        """
        if self.is_closing:
            raise self.closed() from None
        if not self._processes.heal_all(active):
            self._raise_of_the_dead(error, active, give_up)
        return isinstance(error, queue.Empty)

    def _raise_of_the_dead(
        self, error: Exception, active: Sequence[bool], give_up: Callable[[int], None]
    ) -> None:
        dead = self._processes.dead(active)
        explained = self._processes.explain(dead)
        cause = self._cause(error, dead)
        for worker in dead:
            give_up(worker)
            self._processes.give_up(worker)
            self._transport.forget_worker(worker)
        if explained:
            raise RuntimeError(explained) from None if type(error) is queue.Empty else error
        if dead:
            raise RuntimeError(self._processes.say_dead(dead)) from cause

    def _cause(self, error: Exception, dead: Sequence[int]) -> Exception:
        """Return the error, or one that says how workers ended if it says only that none came."""
        ends = self._processes.describe_ends(dead, self._transport.ledger)
        return RuntimeError(ends) if ends and isinstance(error, queue.Empty) else error

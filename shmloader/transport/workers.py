"""
The processes of one transport: start them, notice their deaths, replace them, end them.

Deaths are noticed in one of two ways. Without `restarts`, the client may have them raise in the
trainer; with it, the trainer looks at its workers while it waits and now and then between batches.
"""

import functools
import os
import threading
import time
from collections.abc import Callable, Sequence
from pickle import PicklingError
from typing import Any

from shmloader import log
from shmloader.core import Past
from shmloader.errors import warn
from shmloader.processes import ending, starting
from shmloader.processes.nursery import Nursery
from shmloader.transport.client import Client
from shmloader.transport.healing import Healer
from shmloader.transport.transport import Transport

# Longest park of the trainer before it looks at its workers; within this a death is noticed.
SLICE_S = 0.1
# With workers that leave by themselves, or replacements on their way: their batches wait for it.
_SHORT_SLICE_S = 0.01


class Workers:
    """
    The worker processes of one transport, and the nursery if deaths are healed.

    Attributes:
        by_id: The worker processes by worker id; replacements take the places of dead ones.
        nursery: Forks replacements; None without `restarts`.
        healer: Decides about replacements; None without `restarts`.
        slice_s: Longest park of the trainer before it looks at its workers.
        owner_pid: The process that started them.
    """

    def __init__(self, timeout_s: float) -> None:
        """
        Have no processes yet.

        Args:
            timeout_s: The loader's timeout, in seconds, after which a worker counts as hung; 0:
                never.
        """
        self.by_id: list[Any] = []
        self.nursery: Nursery | None = None
        self.healer: Healer | None = None
        self.owner_pid = os.getpid()
        self.slice_s = self._longest_slice_s = SLICE_S
        self._timeout_s = timeout_s
        self._client: Client | None = None  # until the start
        self._all_started = False
        self._looked_at = time.monotonic()
        ending.end_at_exit(self)

    def pids(self) -> list[int]:
        """The processes that work now, by worker id."""
        return [process.pid for process in self.by_id]

    # Start

    def start(self, context: Any, client: Client, transport: Transport, restarts: int) -> None:
        """
        Start the processes with a context of multiprocessing, each where its past says.

        Args:
            restarts: How many deaths are healed in each epoch.
        """
        self._client = client
        if client.leaves:
            self.slice_s = self._longest_slice_s = _SHORT_SLICE_S
        if restarts > 0 or client.leaves:
            self._start_nursery(context, client, transport, restarts)
        for worker_id, past in enumerate(transport.ledger.progress.pasts):
            target, arguments = client.program(worker_id, None if past == Past() else past)
            process = context.Process(target=target, args=arguments)
            process.daemon = True
            _start(functools.partial(starting.start, process), client.unsendable)
            self.by_id.append(process)
        self._all_started = True
        if self.healer is None:
            client.watch([process.pid for process in self.by_id])
        self._tell_start(transport)

    def _tell_start(self, transport: Transport) -> None:
        if not log.is_heard():
            return
        shape = transport.segment.shape
        log.tell(
            "%s: %d workers started by %s, pids %s%s; %d slots of at most %.1f MB each, at most "
            "%.1f MB in all",
            transport.name,
            len(self.by_id),
            starting.method_of(self.by_id[0]),
            ", ".join(str(process.pid) for process in self.by_id),
            f", nursery {self.nursery.process.pid}" if self.nursery is not None else "",
            shape.slots,
            shape.range_bytes / 1e6,
            shape.ring_bytes / 1e6,
        )

    def _start_nursery(
        self, context: Any, client: Client, transport: Transport, restarts: int
    ) -> None:
        # Listed before it starts: an interrupt must not leave a nursery that is not ended.
        self.nursery = Nursery(context, client.spec, client.succeed)
        _start(self.nursery.start, client.unsendable)
        self.healer = Healer(client, transport, self.nursery, self.by_id, restarts)

    def unwatch(self) -> None:
        """Have no death of these workers raise from now on."""
        if self._client is not None:
            self._client.unwatch()

    # Deaths

    def begin_epoch(self) -> None:
        """Have all restarts again."""
        if self.healer is not None:
            self.healer.begin_epoch()

    def dead(self, active: Sequence[bool]) -> list[int]:
        """List the dead workers among the active ones, which have more to give."""
        self._tend()
        dead = [
            worker_id
            for worker_id, process in enumerate(self.by_id)
            if active[worker_id] and not process.is_alive()
        ]
        # Workers that end with the interpreter are no news for a thread that ends with it too.
        if ending.exit_has_begun() and threading.current_thread() is not threading.main_thread():
            return []
        return dead

    def heal_all(self, active: Sequence[bool]) -> bool:
        """Replace every dead worker. Returns False if one could not be replaced."""
        for worker_id in self.dead(active):
            if self.healer is None:
                return False
            if self.healer.has_left(worker_id):
                self.healer.replace(worker_id)
            elif self.healer.can_heal(worker_id):
                self.healer.heal(worker_id)
            else:
                return False
        self._tend()
        return True

    def _tend(self) -> None:
        """See to the replacements that are ordered and not there yet, also to what comes of it."""
        if self.healer is not None and not ending.exit_has_begun():
            self.slice_s = _SHORT_SLICE_S if self.healer.tend() else self._longest_slice_s

    def heal_now_and_then(self, active: Sequence[bool], transport: Transport) -> bool:
        """Replace dead workers even while batches are ready. Returns True if one was awaited."""
        now = time.monotonic()
        if now - self._looked_at < self.slice_s:
            return False
        self._looked_at = now
        awaited, dead = transport.awaited_worker(), self.dead(active)
        return bool(dead) and self.heal_all(active) and awaited in dead

    def replace_hung(self, transport: Transport) -> bool:
        """Kill and replace the worker that outlasted the timeout. Returns False if it was not."""
        if self._timeout_s <= 0 or self.healer is None:
            return False
        worker_id = transport.awaited_worker()
        if worker_id is None or not self.healer.can_heal(worker_id):
            return False
        process = self.by_id[worker_id]
        process.kill()
        process.join(ending.LEAVE_S)
        if process.is_alive():
            # Such as one in a system call that no signal ends: it may still write to its slots.
            return False
        self.healer.heal(worker_id, f"was killed after it hung for timeout={self._timeout_s} s")
        return True

    def say_dead(self, dead: Sequence[int]) -> str:
        """Say that workers have died which nothing replaces."""
        assert self._client is not None, "they were started"
        pids = ", ".join(str(self.by_id[worker].pid) for worker in dead)
        return f"{self._client.kind} (pid(s) {pids}) exited unexpectedly"

    def explain(self, dead: Sequence[int]) -> str | None:
        """Say why the first of some dead workers was not replaced; None if nothing is healed."""
        return self.healer.explain(dead[0]) if self.healer and dead else None

    # End

    def processes(self) -> list[Any]:
        """List all that runs for this iterator: its workers and its nursery."""
        return self.by_id + ([self.nursery] if self.nursery else [])

    def leave(self) -> None:
        """Wait for workers that were told to leave, with one deadline for all of them."""
        ending.join_all(self.by_id, ending.LEAVE_S)

    def end(self) -> bool:
        """
        End all processes.

        Returns:
            True if every process that was ever started here has been reaped.
        """
        self.unwatch()
        try:
            ending.end_all(self.by_id)
        finally:
            if self.nursery is not None:
                self.nursery.close()
        # An interrupt in the middle of a start leaves a process that is not listed here.
        return self._all_started and not any(process.is_alive() for process in self.by_id)


def _start(start: Callable[[], None], unsendable: str) -> None:
    """Start a process of ours, and explain an object that cannot be pickled on its way."""
    try:
        start()
    except (TypeError, AttributeError, PicklingError):
        warn(unsendable)
        raise

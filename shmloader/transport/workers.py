"""
The processes of one transport: start them, notice their deaths, replace them, end them.

Deaths are noticed in one of two ways. Without `restarts`, the client may have them raise in the
trainer; with it, the trainer looks at its workers while it waits and now and then between batches.
"""

import multiprocessing
import os
import threading
import time
from collections.abc import Sequence
from pickle import PicklingError
from typing import Any

from shmloader import log
from shmloader.core import Past
from shmloader.errors import warn
from shmloader.processes import by_server, ending, sealed, starting
from shmloader.processes.anew import Anew
from shmloader.processes.by_server import ByServer
from shmloader.processes.newborn import Newborn
from shmloader.processes.nursery import Nursery
from shmloader.processes.sealed import Sealed
from shmloader.processes.servers import servers
from shmloader.transport.client import Client
from shmloader.transport.healing import Healer, describe_end
from shmloader.transport.transport import Transport

# Longest park of the trainer before it looks at its workers; within this a death is noticed.
SLICE_S = 0.1
# With workers that leave by themselves, or are on their way: their batches wait for it.
_SHORT_SLICE_S = 0.01


class Workers:
    """
    The worker processes of one transport, and what starts more of them.

    Attributes:
        by_id: The worker processes by worker id; replacements take the places of dead ones.
        mother: Starts replacements, and by a preloaded server all workers; None under fork
            without `restarts`.
        healer: Decides about replacements; None without `restarts`.
        slice_s: Longest park of the trainer before it looks at its workers.
        owner_pid: The process that started them.
        started_s: When their start began, by the monotonic clock; None: it has not.
    """

    def __init__(self, timeout_s: float) -> None:
        """Have no processes yet; a worker counts as hung after so many seconds, 0: never."""
        self.by_id: list[Any] = []
        self.mother: Nursery | Anew | ByServer | None = None
        self.healer: Healer | None = None
        self.owner_pid = os.getpid()
        self.slice_s = self._longest_slice_s = SLICE_S
        self._timeout_s = timeout_s
        self._client: Client | None = None  # until the start
        self.started_s: float | None = None
        self._all_started = self._is_told = False
        self._looked_at = time.monotonic()
        ending.end_at_exit(self)

    def pids(self) -> list[int]:
        """The processes that work now, by worker id; 0: not known yet."""
        return [process.ident or 0 for process in self.by_id]

    # Start

    def start(self, context: Any, client: Client, transport: Transport, restarts: int) -> None:
        """Start the processes with a context of multiprocessing, each where its past says."""
        self._client, self.started_s = client, time.monotonic()
        if client.leaves:
            self.slice_s = self._longest_slice_s = _SHORT_SLICE_S
        heals = restarts > 0 or client.leaves
        if starting.method_of(context) == "fork":
            self._fork(context, client, transport, heals)
        else:
            self._start_others(context, client, transport)
        if heals:
            assert self.mother is not None, "it starts replacements"
            self.healer = Healer(client, transport, self.mother, self.by_id, restarts)
        self._all_started = True
        if not heals and not isinstance(self.mother, ByServer):
            client.watch([process.pid for process in self.by_id])
        self._tell_start(transport)

    def _fork(self, context: Any, client: Client, transport: Transport, heals: bool) -> None:
        if heals:
            # Listed before it starts: an interrupt must not leave a nursery that is not ended.
            self.mother = Nursery(context, client.spec, client.succeed)
            self.mother.start()
        for worker_id, known in enumerate(_pasts(transport)):
            arguments = client.spec, worker_id, known
            self._start_one(context.Process(target=client.succeed, args=arguments, daemon=True))

    def _start_others(self, context: Any, client: Client, transport: Transport) -> None:
        content = _pickle(client, starting.is_standard(context))
        preload = client.preload
        if preload is not None and not by_server.may_carry(content):
            # Nor would multiprocessing's fork server, which carries no more.
            preload, context = None, multiprocessing.get_context("spawn")
        self.mother = anew = Anew(context, content, client.succeed)
        if preload is not None:
            server = servers.of_now((*client.modules, *preload))
            self.mother = ByServer(server, anew, client.spec)
        for worker_id, known in enumerate(_pasts(transport)):
            if isinstance(self.mother, ByServer):
                # Listed before it starts, as the nursery.
                self.by_id.append(Newborn(self.mother, worker_id, known))
                self.by_id[-1].start()
            else:
                arguments = content, client.succeed, worker_id, known
                self._start_one(context.Process(target=sealed.run, args=arguments, daemon=True))

    def _start_one(self, process: Any) -> None:
        starting.start(process)
        self.by_id.append(process)

    def _tell_start(self, transport: Transport) -> None:
        """Tell the logger of the start, once it is known which process each worker is."""
        if not log.is_heard() or self._is_told or not all(map(_is_decided, self.by_id)):
            return
        self._is_told = True
        shape = transport.segment.shape
        log.tell(
            "%s: %d workers started by %s, pids %s%s; %d slots of at most %.1f MB each, at most "
            "%.1f MB in all",
            transport.name,
            len(self.by_id),
            self._name_method(),
            ", ".join(str(process.ident) for process in self.by_id),
            f", nursery {self.mother.process.pid}" if isinstance(self.mother, Nursery) else "",
            shape.slots,
            shape.range_bytes / 1e6,
            shape.ring_bytes / 1e6,
        )

    @property
    def doing(self) -> str | None:
        """What the workers' start waits for, as in "importing torch"; None: that is not known."""
        return self.mother.server.doing if isinstance(self.mother, ByServer) else None

    def _name_method(self) -> str:
        if isinstance(self.mother, ByServer):
            return f"a preloaded server, pid {self.mother.server.process.pid}"
        return starting.method_of(self.by_id[0])

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
        """See to the workers that are ordered and not there yet, also to what comes of it."""
        if self.mother is None or ending.exit_has_begun():
            return
        awaited = [each for each in self.by_id if not _is_decided(each)]
        for each in awaited:
            each.start()
        if self.healer is not None:
            self.healer.tell_of_others()
        is_awaited = not all(map(_is_decided, awaited))
        self.slice_s = _SHORT_SLICE_S if is_awaited else self._longest_slice_s

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
        processes = [self.by_id[worker] for worker in dead]
        if any(process.ident is None for process in processes):
            return f"a {self._client.kind} {describe_end(processes[0])}"
        pids = ", ".join(str(process.pid) for process in processes)
        return f"{self._client.kind} (pid(s) {pids}) exited unexpectedly"

    def explain(self, dead: Sequence[int]) -> str | None:
        """Say why the first of some dead workers was not replaced; None if nothing is healed."""
        return self.healer.explain(dead[0]) if self.healer and dead else None

    # End

    def processes(self) -> list[Any]:
        """List all that runs for this iterator: its workers and its nursery."""
        return self.by_id + ([self.mother] if isinstance(self.mother, Nursery) else [])

    def leave(self) -> None:
        """Wait for workers that were told to leave, with one deadline for all of them."""
        ending.join_all(self.by_id, ending.LEAVE_S)

    def end(self) -> bool:
        """End all processes. Returns True if every one that was started here was reaped."""
        self.unwatch()
        try:
            ending.end_all(self.by_id)
        finally:
            if self.mother is not None:
                self.mother.close()
        # An interrupt in the middle of a start leaves a process that is not listed here.
        return self._all_started and not any(process.is_alive() for process in self.by_id)


def _pasts(transport: Transport) -> list[Past | None]:
    """By worker, where it begins; None: where any worker begins."""
    return [None if past == Past() else past for past in transport.ledger.progress.pasts]


def _is_decided(process: Any) -> bool:
    """Returns True if it is known which process a worker is, or that there will be none."""
    return not isinstance(process, Newborn) or process.is_decided()


def _pickle(client: Client, is_standard: bool) -> Any:
    """Pickle what workers are started with, and explain an object that cannot be pickled."""
    if not is_standard:
        return sealed.Whole(client.spec)
    try:
        return Sealed.make(client.spec, client.counting)
    except (TypeError, AttributeError, PicklingError):
        warn(client.unsendable)
        raise

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

from shmloader.core import Ledger, Past
from shmloader.errors import warn
from shmloader.processes import by_server, ending, foreign_threads, sealed, starting
from shmloader.processes.anew import Anew
from shmloader.processes.by_server import ByServer
from shmloader.processes.newborn import Newborn
from shmloader.processes.nursery import Nursery
from shmloader.processes.sealed import Sealed
from shmloader.processes.servers import servers
from shmloader.transport import looking
from shmloader.transport.client import Client
from shmloader.transport.healing import Healer, describe_end, describe_start
from shmloader.transport.requests import Requests
from shmloader.transport.seats import VACANT, Seats
from shmloader.transport.transport import Transport

# Longest park of the trainer before it looks at its workers; within this a death is noticed.
SLICE_S = 0.1
_Pasts = list[Past | None]
# With workers that leave by themselves, or are on their way: their batches wait for it.
_SHORT_SLICE_S = 0.01


class Workers:
    """The worker processes of one transport, and what starts more of them."""

    def __init__(self, timeout_s: float) -> None:
        """Have no processes yet."""
        self.by_id: list[Any] = []  # by worker id; replacements take the places of dead ones
        # Starts replacements, and by a preloaded server all workers; None: there are none of both.
        self.mother: Nursery | Anew | ByServer | None = None
        self.healer: Healer | None = None  # decides about replacements
        self.seats: Seats | None = None  # of those that come and go
        self.owner_pid = os.getpid()
        self.slice_s = self._longest_slice_s = SLICE_S
        self._timeout_s = timeout_s  # after which a worker counts as hung; 0: never
        self._client: Client | None = None  # until the start
        self._requests: Requests | None = None
        self.started_s: float | None = None  # when their start began, by the monotonic clock
        self._all_started = self._are_forked = False
        self._looked_at = time.monotonic()
        ending.end_at_exit(self)

    def pids(self) -> list[int]:
        """The processes that work now, by worker id; 0: not known yet."""
        return [process.ident or 0 for process in self.by_id]

    def there(self) -> list[Any]:
        """List the processes that work now, by worker id."""
        if self.seats is None:
            return self.by_id
        # Code that was written for a fixed number takes a pid of None for its own process.
        return [process for process in self.by_id if process.pid is not None]

    # Start

    def start(
        self,
        context: Any,
        client: Client,
        transport: Transport,
        restarts: int,
        begin: int | None = None,
    ) -> None:
        """
        Start the processes with a context of multiprocessing, each where its past says.

        More than those that begin may be added later; None: all of them begin.
        """
        self._client, self.started_s = client, time.monotonic()
        self._requests = transport.requests
        if client.leaves:
            self.slice_s = self._longest_slice_s = _SHORT_SLICE_S
        heals = restarts > 0 or client.leaves
        if starting.method_of(context) == "fork":
            self._fork(context, client, _pasts(transport, begin), heals or begin is not None)
        else:
            self._start_others(context, client, _pasts(transport, begin))
        if begin is not None:
            self._have_seats(transport)
        if heals:
            assert self.mother is not None, "it starts replacements"
            self.healer = Healer(client, transport, self.mother, self.by_id, restarts)
        self._all_started = True
        self._allow_looks(len(self.by_id) if begin is None else begin, transport)
        if not heals and begin is None and not isinstance(self.mother, ByServer):
            client.watch([process.pid for process in self.by_id])

    def _allow_looks(self, workers: int, transport: Transport) -> None:
        assert self._client is not None, "it is set before any worker starts"
        threads = max(1, getattr(self._client.spec, "fetch_threads", 0))
        looking.begin(self, threads * workers, transport.ledger)

    def _fork(self, context: Any, client: Client, pasts: _Pasts, has_nursery: bool) -> None:
        self._are_forked = True
        if has_nursery:
            # Listed before it starts: an interrupt must not leave a nursery that is not ended.
            self.mother = Nursery(context, client.spec, client.succeed, client.words.without)
            self.mother.start()
        for worker_id, known in enumerate(pasts):
            arguments = client.spec, worker_id, known
            self._start_one(context, client.succeed, arguments)

    def _start_others(self, context: Any, client: Client, pasts: _Pasts) -> None:
        content = _pickle(client)
        preload = client.preload
        if preload is not None and not by_server.may_carry(content):
            # Nor would multiprocessing's fork server, which carries no more.
            preload, context = None, multiprocessing.get_context("spawn")
        self.mother = anew = Anew(context, content, client.succeed, client.spec)
        if preload is not None:
            server = servers.of_now((*client.modules, *preload))
            self.mother = ByServer(server, anew, client.spec)
        for worker_id, known in enumerate(pasts):
            if isinstance(self.mother, ByServer):
                # Listed before it starts, as the nursery.
                self.by_id.append(Newborn(self.mother, worker_id, known))
                self.by_id[-1].start()
            else:
                arguments = content, client.succeed, worker_id, known, client.spec.signals
                self._start_one(context, sealed.run, arguments)

    # Workers that come and go

    def _have_seats(self, transport: Transport) -> None:
        assert self.mother is not None, "it starts more"
        begun, seats = len(self.by_id), transport.segment.shape.workers
        self.by_id.extend([VACANT] * (seats - begun))
        for seat in range(begun, seats):
            transport.requests.close_seat(seat)
        self.seats = Seats(transport, self.by_id, self.mother)
        transport.is_absent = self.seats.is_absent
        transport.note_workers(begun)

    def change(self, count: int, transport: Transport) -> None:
        """Start so many workers more, or with a count below 0 let so many go, as far as may be."""
        assert self.seats is not None, "they were started with seats"
        one = self.seats.add if count > 0 else self.seats.let_go
        for _ in range(abs(count)):
            if not one():
                break
        self.tend()
        transport.note_workers(self.working)
        self._allow_looks(self.working, transport)

    def living(self) -> set[int]:
        """The workers that are there or start, and are not let go."""
        return set(range(len(self.by_id))) if self.seats is None else self.seats.living()

    @property
    def working(self) -> int:
        """How many workers there are that may be asked."""
        return len(self.living())

    def _start_one(self, context: Any, target: Any, arguments: tuple[Any, ...]) -> None:
        assert self._client is not None, "it is set before any worker starts"
        is_daemon = self._client.spec.is_daemon
        process = context.Process(target=target, args=arguments, daemon=is_daemon)
        starting.start(process)
        self.by_id.append(process)

    @property
    def doing(self) -> str | None:
        """What the workers' start waits for, as in "importing torch"; None: that is not known."""
        return self.mother.server.doing if isinstance(self.mother, ByServer) else None

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
        self.tend()
        dead = [
            worker_id
            for worker_id, process in enumerate(self.by_id)
            if active[worker_id] and not process.is_alive() and self._is_expected(worker_id)
        ]
        # Workers that end with the interpreter are no news for a thread that ends with it too.
        if ending.exit_has_begun() and threading.current_thread() is not threading.main_thread():
            return []
        return dead

    def _is_expected(self, worker_id: int) -> bool:
        if self.seats is not None and not self.seats.has_more(worker_id):
            return False
        # One that was given up, of those that come and go too, is asked nothing more.
        assert self._requests is not None, "they were started"
        is_leaving = self.seats is not None and worker_id in self.seats.leaving
        return is_leaving or self._requests.may_ask(worker_id)

    def heal_all(self, active: Sequence[bool]) -> bool:
        """Replace every dead worker. Returns False if one could not be replaced."""
        dead = self.dead(active)
        if dead and not (self.healer is not None and self.healer.heal_all(dead)):
            return False
        self.tend()
        return True

    def give_up(self, worker: int) -> None:
        """Note that a dead worker is not replaced: one of those that leave may have to stay."""
        if self.seats is not None:
            self.seats.give_up(worker)

    def tend(self) -> None:
        """See to the workers that are ordered and not there yet, also to what comes of it."""
        if self.mother is None or ending.exit_has_begun():
            return
        if self.seats is not None:
            self.seats.tend()
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
        if worker_id is None:
            return False
        cause = f"was killed after it hung for timeout={self._timeout_s} s"
        return self.healer.heal_hung(worker_id, lambda: self._kill(worker_id), cause)

    def _kill(self, worker_id: int) -> bool:
        """Returns False if it lives on, as in a system call that no signal ends."""
        process = self.by_id[worker_id]
        process.kill()
        process.join(ending.LEAVE_S)
        return not process.is_alive()

    def say_dead(self, dead: Sequence[int]) -> str:
        """Say that workers have died which nothing replaces."""
        assert self._client is not None, "they were started"
        processes = [self.by_id[worker] for worker in dead]
        if any(process.ident is None for process in processes):
            return f"a {self._client.kind} {describe_end(processes[0])}"
        pids = ", ".join(str(process.pid) for process in processes)
        return f"{self._client.kind} (pid(s) {pids}) exited unexpectedly"

    def describe_ends(self, dead: Sequence[int], ledger: Ledger) -> str:
        """Say how dead workers ended, as far as their exit codes tell."""
        assert self._client is not None, "they were started"
        ends = []
        for worker in dead:
            process = self.by_id[worker]
            if process.ident is not None and process.exitcode:
                end = f"{describe_end(process)}{describe_start(ledger, worker)}"
                ends.append(f"{self._client.kind} (pid {process.pid}) {end}")
        return "; ".join(ends)

    def explain(self, dead: Sequence[int]) -> str | None:
        """Say why the first of some dead workers was not replaced; None if nothing is healed."""
        return self.healer.explain(dead[0]) if self.healer and dead else None

    def explain_hang(self, transport: Transport) -> str:
        """Say which worker hangs that was not replaced, and why it may."""
        worker_id = transport.awaited_worker()
        who = ""
        if self.healer is not None and worker_id is not None:
            who = f": {self.healer.explain_hang(worker_id)}"
        return who + self.suspicion()

    def suspicion(self) -> str:
        """Say why forked workers may hang, as one more sentence; "": that is not known."""
        return foreign_threads.suspicion() if self._are_forked else ""

    # End

    def processes(self) -> list[Any]:
        """List all that runs for this iterator: its workers and its nursery."""
        return self.by_id + ([self.mother] if isinstance(self.mother, Nursery) else [])

    def leave(self, timeout_s: float | None = ending.LEAVE_S) -> None:
        """Wait for workers that were told to leave, with one deadline for all; None: for ever."""
        ending.join_all(self.by_id, timeout_s)

    def end(self) -> bool:
        """End all processes. Returns True if every one that was started here was reaped."""
        self.unwatch()
        try:
            ending.end_all(self.by_id)
        finally:
            if self.mother is not None:
                self.mother.close()
            looking.end(self)
        # An interrupt in the middle of a start leaves a process that is not listed here.
        return self._all_started and not any(process.is_alive() for process in self.by_id)


def _pasts(transport: Transport, begin: int | None) -> _Pasts:
    """By worker that is started, where it begins; None: where any worker begins."""
    pasts = transport.ledger.progress.pasts
    return [None if past == Past() else past for past in pasts[:begin]]


def _is_decided(process: Any) -> bool:
    """Returns True if it is known which process a worker is, or that there will be none."""
    return not isinstance(process, Newborn) or process.is_decided()


def _pickle(client: Client) -> Sealed:
    """Pickle what workers are started with, and explain an object that cannot be pickled."""
    try:
        return Sealed.make(client.spec)
    except (TypeError, AttributeError, PicklingError):
        warn(client.unsendable)
        raise

"""
Replace dead workers within `restarts`, and say what happened to them.

The answers and their order stay as they would have been. The trainer does not wait for a
replacement, which finds its requests in its ring when it starts.
"""

import os
import signal
from typing import Any

from shmloader import log
from shmloader.core import Past
from shmloader.errors import RestartWarning, warn
from shmloader.memory import shortages
from shmloader.processes import starting
from shmloader.processes.anew import Anew
from shmloader.processes.by_server import ByServer
from shmloader.processes.newborn import Newborn
from shmloader.processes.nursery import Nursery
from shmloader.transport.client import Client
from shmloader.transport.transport import Transport


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_end(process: Any) -> str:
    """Say how a process ended, as in "was killed by SIGKILL"."""
    code = process.exitcode
    if process.pid is None:
        return "could not be started" + (f" ({os.strerror(code)})" if code is not None else "")
    if code is None:
        return "ended"
    if code == starting.UNKNOWN_CODE:
        return f"ended (its exit code is not known: {starting.name_reaper()})"
    return f"was killed by {_name_of(-code)}" if code < 0 else f"exited with code {code}"


class Healer:
    """Replaces the workers of one transport, a limited number of times in each epoch."""

    def __init__(
        self,
        client: Client,
        transport: Transport,
        mother: Nursery | Anew | ByServer,
        workers: list[Any],
        restarts: int,
    ) -> None:
        """Replace workers in their list, by a mother, for so many deaths in each epoch."""
        self._client = client
        self._transport = transport
        self._mother = mother
        self._workers = workers
        self._restarts = restarts
        self._used = 0
        self._is_told = False  # of a new nursery
        # Worker -> its snapshot when the last one in its place left, or another run's worker.
        self._left_at = [past.latest for past in transport.ledger.progress.pasts]

    def begin_epoch(self) -> None:
        """Have all restarts again."""
        self._used = 0

    def tell_of_others(self) -> None:
        """Warn once if replacements begin with another dataset than workers did."""
        if not isinstance(self._mother, Nursery) or not self._mother.others or self._is_told:
            return
        self._is_told = True
        message = (
            f"the process that starts replacements of {self._client.kind}s died, and another was "
            f"started (pid {self._mother.process.pid}): they begin with the dataset as it is now "
            "in this process, so no batch changes if it is as it was at iter()"
        )
        log.tell("%s: %s", self._transport.name, message)
        warn(message, RestartWarning)

    def can_heal(self, worker_id: int) -> bool:
        """Returns True if restarts are left and a replacement can go on."""
        return self._used < self._restarts and self._is_known(worker_id)

    def _is_known(self, worker_id: int) -> bool:
        progress = self._transport.ledger.progress.pasts[worker_id]
        if not progress.is_known:
            return False
        return progress.begun is None or self._client.is_whole(progress.begun)

    def has_left(self, worker_id: int) -> bool:
        """Returns True if a dead worker left and can be replaced: its memory grew too much."""
        self._transport.drain()  # its last answer, which says so, may still be in its ring
        latest = self._transport.ledger.progress.pasts[worker_id].latest
        if not latest or latest is self._left_at[worker_id]:
            return False
        return self._client.says_that_it_leaves(latest)

    def replace(self, worker_id: int) -> None:
        """Replace a worker that has left; it costs no restart, and there is no warning."""
        transport = self._transport
        latest = transport.ledger.progress.pasts[worker_id].latest
        assert latest is not None, "it said that it leaves"
        pid = self._workers[worker_id].pid
        self._start_another(worker_id, transport.recall(worker_id))
        self._left_at[worker_id] = latest
        grown = self._client.growth(latest)
        if grown is not None:
            transport.note_growth(worker_id, *grown)
        transport.pump()
        log.tell(
            "%s: worker %d (pid %s) is replaced: it took %.1f MB in %d batches",
            *(transport.name, worker_id, pid),
            *((0.0, 0) if grown is None else (grown[0] / 1e6, grown[1])),
        )

    def _start_another(self, worker_id: int, progress: Past) -> None:
        # In its place before it starts: an interrupt must not leave a process that is not listed.
        self._workers[worker_id] = Newborn(self._mother, worker_id, progress)
        self._workers[worker_id].start()

    def heal(self, worker_id: int, cause: str | None = None) -> None:
        """Replace a reaped worker, and warn; cause: if its exit code does not say it."""
        dead = self._workers[worker_id]
        pid = f" (pid {dead.pid})" if dead.pid is not None else ""
        progress = self._transport.recall(worker_id)
        index = self._transport.in_hand(worker_id)
        self._start_another(worker_id, progress)
        self._used += 1
        self._transport.figures.note_restart()
        self._transport.pump()
        message = (
            f"{self._client.kind} {worker_id}{pid} {cause or describe_end(dead)} with "
            f"{self._client.describe(index)} in hand; another takes its place, and no batch "
            f"changes (restart {self._used} of {self._restarts} in this epoch)"
        )
        log.tell("%s: %s", self._transport.name, message)
        warn(message, RestartWarning)

    def explain(self, worker_id: int) -> str:
        """Say why a dead worker is not replaced, and which batch it had in hand."""
        dead = self._workers[worker_id]
        who = f"{self._client.kind} (pid(s) {dead.pid}) exited unexpectedly: it"
        if dead.pid is None:
            who = f"{self._client.kind} {worker_id}"
        words = (
            f"{who} {describe_end(dead)} with "
            f"{self._client.describe(self._transport.in_hand(worker_id))} in hand, "
        )
        if self._restarts == 0:
            return words + "and no restarts were asked for: restarts=n replaces workers that die"
        if not self._is_known(worker_id):
            return words + (
                "and its last answer does not say where another could go on: its dataset's "
                "state_dict() failed there, or left no room within ring_bytes"
            )
        words += f"and all {self._restarts} restarts of this epoch are used: "
        if dead.pid is None:
            reason = shortages.describe(dead.exitcode)
            words += reason or "processes, memory or files are short: free some"
            return words + ", or raise restarts"
        return words + (
            "if it was this batch each time, look at these samples; otherwise raise restarts"
        )

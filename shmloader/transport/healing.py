"""
Replace dead workers within `restarts`, and say what happened to them.

The answers and their order stay as they would have been. The trainer does not wait for a
replacement, which finds its requests in its ring when it starts.

Deaths that come together have one cause, outside of the samples: a signal to the process group, the
kernel for want of memory. So they cost one restart. A worker that dies again costs another one, so
that what kills each worker in its turn comes to an end.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable
from typing import Any

from shmloader import log
from shmloader.core import Ledger, Past
from shmloader.memory import shortages
from shmloader.processes import starting
from shmloader.processes.anew import Anew
from shmloader.processes.by_server import ByServer
from shmloader.processes.newborn import Newborn
from shmloader.processes.nursery import Nursery
from shmloader.transport.client import Client
from shmloader.transport.transport import Transport

TOGETHER_S = 0.5  # from the first death to the last of those that come together


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
        return "ended (its exit code is not known, as something else in this process reaped it)"
    if code == 0:
        return "exited with code 0, as workers do on SIGTERM from this process, or by sys.exit()"
    return f"was killed by {_name_of(-code)}" if code < 0 else f"exited with code {code}"


def describe_start(ledger: Ledger, worker_id: int) -> str:
    """Say that a dead worker never began, as the end of a clause; "": it did begin."""
    if ledger.is_seated(worker_id):
        return ""
    return " before it began (see what it wrote to its standard error)"


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
        self._client = client
        self._transport = transport
        self._mother = mother
        self._workers = workers
        self._restarts = restarts
        self._used = 0
        self._together: set[int] = set()  # workers that have died together, of late
        self._replaced: set[int] = set()  # of these; the first has cost a restart
        self._since_s = -TOGETHER_S
        self._is_told = False  # of a new nursery
        # Worker -> its snapshot when the last one in its place left, or another run's worker.
        self._left_at = [past.latest for past in transport.ledger.progress.pasts]

    def begin_epoch(self) -> None:
        """Have all restarts again."""
        self._used = 0
        self._see_apart(())

    def heal_all(self, dead: Iterable[int]) -> bool:
        """Replace dead workers. Returns False if one cannot be replaced."""
        fallen = []
        for worker_id in dead:
            if self.has_left(worker_id):
                self.replace(worker_id)
            else:
                fallen.append(worker_id)
        is_later = time.monotonic() - self._since_s > TOGETHER_S
        if fallen and (is_later or not self._replaced.isdisjoint(fallen)):
            self._see_apart(fallen)
        self._together.update(fallen)
        for worker_id in fallen:
            if not self.can_heal(worker_id):
                return False
            self.heal(worker_id)
        return True

    def _see_apart(self, dead: Iterable[int]) -> None:
        """Note that these have not died together with those before."""
        self._together, self._replaced, self._since_s = set(dead), set(), time.monotonic()

    def heal_hung(self, worker_id: int, end: Callable[[], bool], cause: str) -> bool:
        """End and replace a worker that hangs. Returns False if it cannot be ended or replaced."""
        self._see_apart([worker_id])
        if not (self.can_heal(worker_id) and end()):
            return False
        self.heal(worker_id, cause)
        return True

    def tell_of_others(self) -> None:
        """Warn once if replacements begin with another dataset than workers did."""
        if not isinstance(self._mother, Nursery) or not self._mother.others or self._is_told:
            return
        self._is_told = True
        message = (
            f"the process that starts replacements of {self._client.kind}s died, and was replaced "
            f"(pid {self._mother.process.pid}): {self._client.words.anew}"
        )
        log.tell("%s: %s", self._transport.name, message)
        self._client.warn(message)

    def can_heal(self, worker_id: int) -> bool:
        """Returns True if restarts are left and a replacement can go on."""
        is_paid = bool(self._replaced)
        return (is_paid or self._used < self._restarts) and self._is_known(worker_id)

    def _is_known(self, worker_id: int) -> bool:
        progress = self._transport.ledger.progress.pasts[worker_id]
        return progress.is_known and self._client.is_place(progress)

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
        assert latest is not None, "it announced that it leaves"
        pid = self._workers[worker_id].pid
        self._start_another(worker_id, transport.recall(worker_id))
        self._left_at[worker_id] = latest
        transport.left[worker_id] += 1
        transport.pump()
        log.tell("%s: worker %d (pid %s) has left and is replaced", transport.name, worker_id, pid)

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
        self._used += not self._replaced
        self._replaced.add(worker_id)
        self._transport.ledger.note_restart()
        self._transport.pump()
        count = len(self._together)
        others = f", for {count} that died together" if count > 1 else ""
        message = (
            f"{self._client.kind} {worker_id}{pid} {cause or describe_end(dead)} with "
            f"{self._client.describe(index)} in hand; it was replaced, and "
            f"{self._client.words.again} (restart {self._used} of {self._restarts} in this "
            f"{self._client.words.period}{others})"
        )
        log.tell("%s: %s", self._transport.name, message)
        self._client.warn(message)

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
            return words + "and restarts is 0: restarts=n replaces workers that die"
        if not self._is_known(worker_id):
            return words + (
                "and its last response does not contain the position where a replacement could "
                "continue: its dataset's state_dict() failed there, or left no room within "
                "ring_bytes, or that response is hundreds of epochs old"
            )
        words += f"and all {self._restarts} restarts of this {self._client.words.period} are used: "
        if dead.pid is None:
            reason = shortages.describe(dead.exitcode)
            words += reason or "processes, memory or files are short: free some"
            return words + ", or raise restarts"
        unbegun = describe_start(self._transport.ledger, worker_id)
        if unbegun:
            return f"{words}the last one ended{unbegun}"
        return words + (self._of_a_common_end() or self._advice)

    def _of_a_common_end(self) -> str:
        if len(self._together) < 2:
            return ""
        return (
            f"{len(self._together)} workers died together, so the cause is not this batch but "
            "something that ends several at once, such as a signal to the process group or a lack "
            "of memory"
        )

    @property
    def _advice(self) -> str:
        return f"if {self._client.words.suspect}; otherwise raise restarts"

    def explain_hang(self, worker_id: int) -> str:
        """Say which worker hangs that is not replaced, with which batch in hand."""
        who = f"{self._client.kind} {worker_id} (pid {self._workers[worker_id].ident})"
        index = self._transport.in_hand(worker_id)
        if self._transport.ledger.is_seated(worker_id):
            words, advice = f"hangs with {self._client.describe(index)} in hand", self._advice
        else:
            words, advice = "has not begun", "see what its start waits for, or raise timeout"
        if self._used >= self._restarts:
            period = self._client.words.period
            words += f", and all {self._restarts} restarts of this {period} are used: {advice}"
        return f"{who} {words}"

"""
Kills and stops children of a trainer that knows nothing of it, from a process of its own.

Children are the workers and the nursery, also those that lost their parents. A replacement in its
first moments counts as a worker. The killer runs until its input has a word or EOF.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from bench.usage import children

_CHECKOUT = Path(__file__).resolve().parents[3]
_WORKER_NAME, _NURSERY_NAME = "pt_data_worker", "shm_nursery"
_NAMES = (_WORKER_NAME, _NURSERY_NAME, "shm_newborn")
_RUNNING, _STOPPED = "RSD", "T"  # states of a process, as the kernel writes them
_NURSERIES_PART = 0.4  # of all kills


class Killer:
    """
    The killer's process, as a context of the trainer; it takes aim at this process's workers.

    Attributes:
        killed, stopped: How many workers it hit; known when the context is left.
        nurseries: How many nurseries it killed.
    """

    def __init__(self, kill_s: float, stop_s: float, most: int, seed: int):
        """
        Describe the killer.

        Args:
            kill_s: Seconds from one kill to the next.
            stop_s: Seconds from one stop to the next; 0: it stops none.
            most: How many processes it kills before it lets the others live; 0: there is no end.
            seed: Of its choice of workers.
        """
        arguments = [str(value) for value in (os.getpid(), kill_s, stop_s, most, seed)]
        self._command = [sys.executable, "-m", __name__, *arguments]
        self.killed = self.stopped = self.nurseries = 0

    def __enter__(self) -> Killer:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(self._command, cwd=_CHECKOUT, **pipes)
        return self

    def __exit__(self, *_: object) -> None:
        # A word and not the end of its input: forked workers hold the other end of that as well.
        line, _ = self._process.communicate(b"\n")
        self.killed, self.stopped, self.nurseries = json.loads(line)


class Aim:
    """
    Chooses children of one trainer and sends them signals.

    Attributes:
        hits: How many workers each signal was sent to.
        nurseries: How many nurseries were killed.
    """

    def __init__(self, trainer_pid: int, seed: int):
        self._trainer_pid = trainer_pid
        self._random = random.Random(seed)
        self._family: dict[int, str] = {}  # pid -> name when it was looked at
        self._born: set[int] = set()  # those that nurseries have forked
        self._dying: set[int] = set()  # killed, and perhaps not dead: a busy machine takes a while
        self.hits: Counter = Counter()
        self.nurseries = 0

    def hit(self, number: signal.Signals) -> None:
        """Send a signal to a random child; the loader must find one that is stopped."""
        workers, nurseries = self._look(_RUNNING)
        # First of all: a nursery that is started in mid-epoch keeps what was leased then, once.
        part = _NURSERIES_PART if self.nurseries else 1
        if number == signal.SIGKILL and nurseries and self._random.random() < part:
            self.nurseries += self._send(self._random.choice(nurseries), _RUNNING, number)
        elif workers and self._send(self._random.choice(workers), _RUNNING, number):
            self.hits[number] += 1

    def release(self) -> None:
        """Continue stopped workers, or the loader would wait for them when it closes."""
        for pid in self._look(_STOPPED)[0]:
            self._send(pid, _STOPPED, signal.SIGCONT)

    def _send(self, pid: int, states: str, number: signal.Signals) -> bool:
        """Send a signal to a process if it has the same name still, and one of these states."""
        with contextlib.suppress(ProcessLookupError):
            process = os.pidfd_open(pid)
            try:
                # Checked after opening the pidfd: the pid might be another process's by now.
                name, state = _name_and_state(pid)
                if name == self._family[pid] and state in states:
                    signal.pidfd_send_signal(process, number)
                    self._dying |= {pid} if number == signal.SIGKILL else set()
                    return True
            finally:
                os.close(process)
        return False

    def _look(self, states: str) -> tuple[list[int], list[int]]:
        """List the workers and the nurseries that are in one of these states."""
        self._family = self._find_family()
        self._dying &= self._family.keys()
        self._born &= self._family.keys()
        found = [pid for pid in self._family if _name_and_state(pid)[1] in states]
        found = [pid for pid in found if pid not in self._dying]
        # Not by the name alone: a newborn has its parent's for a moment.
        nursery_pids = [pid for pid in found if self._family[pid] == _NURSERY_NAME]
        nurseries = [pid for pid in nursery_pids if pid not in self._born]
        return [pid for pid in found if pid not in nurseries], nurseries

    def _find_family(self) -> dict[int, str]:
        """Find workers, nurseries and their children; orphans are known from the last look."""
        family: dict[int, str] = {}
        unseen = [*self._family, *children(self._trainer_pid)]
        while unseen:
            pid = unseen.pop()
            name, state = _name_and_state(pid)
            if pid not in family and name in _NAMES and state not in "XZ":
                family[pid] = name
                born = children(pid)
                self._born.update(born)
                unseen += born
        return family


def _name_and_state(pid: int) -> tuple[str, str]:
    try:
        begin, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return "", "X"
    return begin.partition("(")[2], rest.split()[0]


def run(aim: Aim, periods_s: dict[signal.Signals, float], most: int) -> None:
    """Send each signal at its period until the standard input has a word or EOF."""
    due = dict.fromkeys(periods_s, time.monotonic() + min(periods_s.values()))
    while True:
        number = min(due, key=due.__getitem__)
        if select.select([sys.stdin], [], [], max(0.0, due[number] - time.monotonic()))[0]:
            return
        if number != signal.SIGKILL or not most or aim.hits[number] + aim.nurseries < most:
            aim.hit(number)
        due[number] = time.monotonic() + periods_s[number]


def main(arguments: list[str]) -> None:
    """Be the killer's process, as `Killer` starts it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer must end this process
    trainer_pid, kill_s, stop_s, most, seed = arguments
    aim = Aim(int(trainer_pid), int(seed))
    periods_s = {signal.SIGKILL: float(kill_s), signal.SIGSTOP: float(stop_s)}
    run(aim, {number: period_s for number, period_s in periods_s.items() if period_s}, int(most))
    aim.release()
    said = [*(aim.hits[number] for number in periods_s), aim.nurseries]
    with contextlib.suppress(BrokenPipeError):  # the trainer has been killed
        os.write(1, json.dumps(said).encode())


if __name__ == "__main__":
    main(sys.argv[1:])

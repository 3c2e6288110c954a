"""
Kills and stops workers of a trainer that knows nothing of it, from a process of its own.

A worker is a descendant of the trainer with a worker's name, or any child of the nursery, so that
replacements die before they have a name, too. The killer runs until its input has a word or EOF.
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
_WORKER_NAME = "pt_data_worker"
_RUNNING, _STOPPED = "RSD", "T"  # states of a process, as the kernel writes them


class Killer:
    """
    The killer's process, as a context of the trainer; it takes aim at this process's workers.

    Attributes:
        killed, stopped: How many workers it hit; known when the context is left.
    """

    def __init__(self, kill_s: float, stop_s: float, most: int, seed: int):
        """
        Describe the killer.

        Args:
            kill_s: Seconds from one kill to the next.
            stop_s: Seconds from one stop to the next; 0: it stops none.
            most: How many workers it kills before it lets the others live; 0: there is no end.
            seed: Of its choice of workers.
        """
        arguments = [str(value) for value in (os.getpid(), kill_s, stop_s, most, seed)]
        self._command = [sys.executable, "-m", __name__, *arguments]
        self.killed = self.stopped = 0

    def __enter__(self) -> Killer:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(self._command, cwd=_CHECKOUT, **pipes)
        return self

    def __exit__(self, *_: object) -> None:
        # A word and not the end of its input: forked workers hold the other end of that as well.
        line, _ = self._process.communicate(b"\n")
        self.killed, self.stopped = json.loads(line)


class Aim:
    """
    Chooses workers of one trainer and sends them signals.

    Attributes:
        hits: How many workers each signal was sent to.
    """

    def __init__(self, trainer_pid: int, seed: int):
        self._trainer_pid = trainer_pid
        self._random = random.Random(seed)
        self.hits: Counter = Counter()

    def hit(self, number: signal.Signals) -> None:
        """Send a signal to a random worker; the loader must find one that is stopped."""
        pids = self._workers(_RUNNING)
        if pids and self._send(self._random.choice(pids), _RUNNING, number):
            self.hits[number] += 1

    def release(self) -> None:
        """Continue stopped workers, or the loader would wait for them when it closes."""
        for pid in self._workers(_STOPPED):
            self._send(pid, _STOPPED, signal.SIGCONT)

    def _send(self, pid: int, states: str, number: signal.Signals) -> bool:
        """Send a signal to a process if it is still a worker in one of these states."""
        with contextlib.suppress(ProcessLookupError):
            process = os.pidfd_open(pid)
            try:
                # Checked after opening the pidfd: the pid might be another process's by now.
                if pid in self._workers(states):
                    signal.pidfd_send_signal(process, number)
                    return True
            finally:
                os.close(process)
        return False

    def _workers(self, states: str) -> list[int]:
        nearest = children(self._trainer_pid)
        named = [pid for pid in nearest if _name_and_state(pid)[0] == _WORKER_NAME]
        replacements = [child for pid in nearest if pid not in named for child in children(pid)]
        return [pid for pid in (*named, *replacements) if _name_and_state(pid)[1] in states]


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
        if number != signal.SIGKILL or not most or aim.hits[number] < most:
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
    with contextlib.suppress(BrokenPipeError):  # the trainer has been killed
        os.write(1, json.dumps([aim.hits[number] for number in periods_s]).encode())


if __name__ == "__main__":
    main(sys.argv[1:])

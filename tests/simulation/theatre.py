"""
The process that plays cases, one after the other, each in a process forked from this one.

A program, because importing the package takes longer than a run: `python -m
tests.simulation.theatre PLAY_FILE` under the test build. Each line of its input is a case, each
line of its output what became of it, as JSON.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import os
import random
import select
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

from tests.simulation.case import Case
from tests.simulation.door import VARIABLE, Door, Play
from tests.simulation.lines import Lines
from tests.simulation.waits import Waits

HANGS_AFTER_S = 20.0  # of real time; no run takes a second
GONE_WITHIN_S = 5.0
_EVENTS_MOST = 60_000
_PR_SET_PDEATHSIG = 1


class Theatre:
    """Plays cases."""

    def __init__(self, path: Path) -> None:
        """Write the file of the play, then load the code that maps it."""
        self._play = Play(path)
        os.environ[VARIABLE] = str(path)
        self._waits = Waits()
        import shmloader
        from tests.simulation import user

        self._user = user
        self._door = Door()
        self._package = Path(shmloader.__file__).parent
        self._waits.put_in_place(self._door)
        gc.collect()
        gc.freeze()

    def outcome(self, case: Case, with_trace: bool = False) -> dict[str, Any]:
        """Play a case, and say what became of it."""
        self._write(case)
        reads, writes = os.pipe()
        started_s = time.monotonic()
        pid = os.fork()
        if pid == 0:
            os.close(reads)
            self._be_the_trainer(case, writes)
        os.close(writes)
        hung = not _ends(pid, HANGS_AFTER_S)
        if hung:
            _show_stacks(self._play.pids())
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        left = self._end_the_rest()
        failure = os.read(reads, 1 << 16).decode(errors="replace")
        os.close(reads)
        if self._play.fault:
            failure = self._play.fault
        elif hung:
            failure = "hung in real time"
        elif failure == "":
            failure = "the trainer died"
        elif failure == "well" and left:
            failure = f"{left} processes are left"
        return self._say(case, failure, time.monotonic() - started_s, with_trace)

    def _write(self, case: Case) -> None:
        self._play.begin(
            case.seed,
            switch_one_in=case.switch_one_in,
            fire_one_in=case.fire_one_in,
            slow=case.slow,
            has_views=case.has_views,
            deaths=case.deaths,
            switches=case.switches,
            events_most=_EVENTS_MOST * (20 if case.has_lines else 1),
        )

    def _say(self, case: Case, failure: str, took_s: float, with_trace: bool) -> dict[str, Any]:
        play = self._play
        said = {
            "seed": case.seed,
            "failure": "" if failure == "well" else failure,
            "hash": play.hash,
            "events": play.events,
            "switches": play.switches,
            "died": play.died,
            "took_s": took_s,
        }
        if with_trace:
            said["trace"] = [[e.actor, e.kind, e.number] for e in play.trace()]
        return said

    # The trainer

    def _be_the_trainer(self, case: Case, writes: int) -> None:
        os.setsid()
        faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        text = "well"
        try:
            self._simulate(case)
        except BaseException:
            text = traceback.format_exc()
        os.write(writes, text.encode()[-60_000:])
        os._exit(0)

    def _simulate(self, case: Case) -> None:
        os.environ["SHMLOADER_DEBUG"] = str(int(case.is_guarded))
        gc.disable()
        random.seed(case.seed)
        warnings.simplefilter("ignore")
        descriptors = len(os.listdir("/proc/self/fd"))
        self._door.open()
        lines = Lines(self._door, self._package, case.interrupts)
        user = self._user.User(case, self._door, self._waits, lines)
        if case.has_lines:
            lines.begin()
        try:
            user.play()
        finally:
            lines.end()
            self._door.close()
        del user
        gc.collect()
        left = len(os.listdir("/proc/self/fd")) - descriptors
        if left:
            raise self._user.Wrong(f"{left} descriptors are left")

    def _end_the_rest(self) -> int:
        """Kill what the run has left; return how many processes that were."""
        deadline_s = time.monotonic() + GONE_WITHIN_S
        left = [pid for pid in self._play.pids() if _runs(pid)]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        while any(map(_runs, left)) and time.monotonic() < deadline_s:
            time.sleep(0.001)
        return len(left)


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _ends(pid: int, within_s: float) -> bool:
    descriptor = os.pidfd_open(pid)
    try:
        return bool(select.select([descriptor], [], [], within_s)[0])
    finally:
        os.close(descriptor)


def _show_stacks(pids: list[int]) -> None:
    """Have processes that wait in the kernel, with the turn or for it, print where that is."""
    for pid in filter(_runs, pids):
        os.kill(pid, signal.SIGUSR1)
    time.sleep(0.5)


def main() -> None:
    """Play the cases of the input until it ends."""
    os.sched_setaffinity(0, {int(sys.argv[2])} if len(sys.argv) > 2 else os.sched_getaffinity(0))
    theatre = Theatre(Path(sys.argv[1]))
    for line in sys.stdin:
        wanted = json.loads(line)
        case = eval(wanted["case"], {"Case": Case})
        print(json.dumps(theatre.outcome(case, wanted.get("trace", False))), flush=True)


if __name__ == "__main__":
    main()

"""
The process that has cases played, one after the other, by a trainer that is forked from this one.

A program, because importing the package takes longer than a run: `python -m
tests.simulation.theatre PLAY_FILE` under the test build. Each line of its input is a case, each
line of its output what became of it, as JSON.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from tests.simulation.case import Case
from tests.simulation.door import VARIABLE, Door, Play
from tests.simulation.waits import Waits

HANGS_AFTER_S = 20.0  # of real time in which nothing happens; no run takes a second
GONE_WITHIN_S = 5.0
_EVENTS_MOST = 60_000
_TEXT_BYTES = 60_000


class Theatre:
    """Has cases played."""

    def __init__(self, path: Path) -> None:
        """Write the file of the play, then load the code that maps it."""
        self._play = Play(path)
        self._errors = os.open(path.with_name("errors"), os.O_RDWR | os.O_APPEND | os.O_CREAT)
        os.dup2(self._errors, 2)
        os.environ[VARIABLE] = str(path)
        tempfile.tempdir = str(path.parent)  # where a publisher and its subscribers meet
        self._waits = Waits()
        import shmloader
        from tests.simulation import fenced, trainer

        fenced.library()  # compiled here, because a run has no compiler among its processes
        self._trainers = trainer
        self._door = Door()
        self._package = Path(shmloader.__file__).parent
        self._waits.put_in_place(self._door)
        self._seen = 0  # the trace's hash at the last look whether a run goes on
        gc.collect()
        gc.freeze()

    def outcome(self, case: Case, with_trace: bool = False) -> dict[str, Any]:
        """Have a case played, and say what became of it."""
        self._write(case)
        started_s = time.monotonic()
        run = self._trainers.Run(case, self._door, self._waits, self._package)
        trainer = self._trainers.Trainer(run.play)
        failure = self._end(trainer, trainer.outcome(HANGS_AFTER_S, self._is_stuck))
        if printed := self._take_what_was_printed():
            failure = f"{printed}{failure or 'that was printed, and all else went well'}"
        return self._say(case, failure, time.monotonic() - started_s, with_trace)

    def _is_stuck(self) -> bool:
        """Returns True if nothing has happened since the last call; a busy machine may be slow."""
        before, self._seen = self._seen, self._play.hash
        return before == self._seen

    def _take_what_was_printed(self) -> str:
        """Return what any process of the run has printed as an error, which none may."""
        printed = os.pread(self._errors, _TEXT_BYTES, 0)
        os.ftruncate(self._errors, 0)
        return printed.decode(errors="replace")

    def _end(self, trainer: Any, said: str | None) -> str:
        """End a trainer and all that is left of its run. Returns what was wrong."""
        if said is None:
            _show_stacks(self._play.pids())
        trainer.end()
        left = self._end_the_rest()
        if self._play.fault or said is None:
            return self._play.fault or "hung in real time"
        if said != self._trainers.WELL:
            return said or "the trainer died"
        return f"{left} processes are left" if left else ""

    def _write(self, case: Case) -> None:
        self._play.begin(
            case.seed,
            switch_one_in=case.switch_one_in,
            fire_one_in=case.fire_one_in,
            slow=case.slow,
            has_views=case.has_views,
            scribbles=case.scribbles,
            forges_at=case.forges_at,
            deaths=case.deaths,
            dies_at=case.dies_at,
            events_most=_EVENTS_MOST * (20 if case.has_lines or case.sleeps else 1),
        )

    def _say(self, case: Case, failure: str, took_s: float, with_trace: bool) -> dict[str, Any]:
        play = self._play
        said = {
            "seed": case.seed,
            "failure": failure,
            "hash": play.hash,
            "events": play.events,
            "switches": play.switches,
            "died": play.died,
            "took_s": took_s,
        }
        if with_trace:
            said["trace"] = [[e.actor, e.kind, e.number] for e in play.trace()]
        return said

    def _end_the_rest(self) -> int:
        """Kill what the run has left; return how many processes that were."""
        runs = self._trainers.runs
        deadline_s = time.monotonic() + GONE_WITHIN_S
        left = [pid for pid in self._play.pids() if runs(pid)]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        while any(map(runs, left)) and time.monotonic() < deadline_s:
            time.sleep(0.001)
        return len(left)


def _show_stacks(pids: list[int]) -> None:
    """Have processes that wait in the kernel, with the turn or for it, print where that is."""
    from tests.simulation.trainer import runs

    for pid in filter(runs, pids):
        os.kill(pid, signal.SIGUSR1)
    time.sleep(0.5)


def main() -> None:
    """Play the cases of the input until it ends."""
    os.sched_setaffinity(0, {int(sys.argv[2])} if len(sys.argv) > 2 else os.sched_getaffinity(0))
    with os.fdopen(os.dup(2), "w") as errors:
        try:
            _play_input(Theatre(Path(sys.argv[1])))
        except BaseException:
            traceback.print_exc(file=errors)
            raise


def _play_input(theatre: Theatre) -> None:
    for line in sys.stdin:
        wanted = json.loads(line)
        case = eval(wanted["case"], {"Case": Case})
        print(json.dumps(theatre.outcome(case, wanted["trace"])), flush=True)


if __name__ == "__main__":
    main()

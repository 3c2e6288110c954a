"""The end of whoever has cases played: the build, and the processes that play in it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.helpers.kill_client import BUILD, build
from tests.helpers.kill_steps import ROOT
from tests.simulation.case import Case

__all__ = ["BUILD", "Stage", "build", "several"]

ANSWERS_WITHIN_S = 300.0  # the theatre ends what hangs before that

# Objects lie in huge pages, where there are any: a fork takes 3 ms, not 11.
_SETTINGS = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "PYTHONMALLOC": "malloc",
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
}


class Stage:
    """A theatre in a process of its own."""

    def __init__(self, library: Path = BUILD / "lib", core: int | None = None) -> None:
        """
        Start it.

        Args:
            library: Where the package is that is played with.
            core: Of the processor, to stay on; a change of process is cheap there.
        """
        self._folder = tempfile.TemporaryDirectory(prefix="simulation-")
        path = str(library) + os.pathsep + str(ROOT)
        arguments = [
            os.path.join(self._folder.name, "play"),
            *([] if core is None else [str(core)]),
        ]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.simulation.theatre", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=self._folder.name,
            env={**os.environ, **_SETTINGS, "PYTHONPATH": path},
        )

    def begin(self, case: Case, with_trace: bool = False) -> None:
        """Have a case played."""
        assert self._process.stdin is not None
        wanted = {"case": case.says(), "trace": with_trace}
        self._process.stdin.write(json.dumps(wanted).encode() + b"\n")
        self._process.stdin.flush()

    def outcome(self) -> dict[str, Any]:
        """Wait for the outcome of the case that was begun first."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWERS_WITHIN_S)
        line = self._process.stdout.readline() if ready else b""
        assert line, "the theatre does not answer"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def play(self, case: Case, with_trace: bool = False) -> dict[str, Any]:
        """Play a case, and say what became of it."""
        self.begin(case, with_trace)
        return self.outcome()

    def fileno(self) -> int:
        """What is readable when there is an outcome."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(ANSWERS_WITHIN_S)
        self._process.stdout.close()
        self._folder.cleanup()


@contextlib.contextmanager
def several(count: int, library: Path = BUILD / "lib") -> Iterator[list[Stage]]:
    """Have several theatres, each on a core of its own if there are as many."""
    cores = sorted(os.sched_getaffinity(0))
    stages = [Stage(library, cores[number % len(cores)]) for number in range(count)]
    try:
        yield stages
    finally:
        for stage in stages:
            stage.close()

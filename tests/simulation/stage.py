"""The end of whoever has cases played: the build, and the processes that play in it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.helpers.kill_client import BUILD, Program, build
from tests.simulation.case import Case

__all__ = ["BUILD", "Stage", "build", "several"]

# Objects lie in huge pages, where there are any: a fork takes 3 ms, not 11.
_SETTINGS = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "PYTHONMALLOC": "malloc",
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
}


class Stage(Program):
    """A theatre in a process of its own."""

    answers_within_s = 300.0

    def __init__(self, library: Path = BUILD / "lib", core: int | None = None) -> None:
        """
        Start it.

        Args:
            library: Where the package is that is played with.
            core: Of the processor, to stay on; a change of process is cheap there.
        """
        self._folder = tempfile.TemporaryDirectory(prefix="simulation-")
        folder = self._folder.name
        command = ["-m", "tests.simulation.theatre", os.path.join(folder, "play")]
        command += [] if core is None else [str(core)]
        super().__init__(*command, library=library, cwd=folder, **_SETTINGS)

    def begin(self, case: Case, with_trace: bool = False) -> None:
        """Have a case played."""
        super().begin({"case": repr(case), "trace": with_trace})

    def play(self, case: Case, with_trace: bool = False) -> dict[str, Any]:
        """Play a case, and say what became of it."""
        self.begin(case, with_trace)
        return self.outcome()

    def close(self) -> None:
        """End it."""
        super().close()
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

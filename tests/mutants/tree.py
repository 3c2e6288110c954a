"""A copy of the checkout, in which one mistake at a time is made, and tests are run."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy

from tests.helpers.programs import send
from tests.mutants.site import ROOT, Mutant

_IGNORED = (".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", ".benchmarks")
_PYTEST = ("-m", "pytest", "-q", "--benchmark-disable", "--durations=0")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)
_ERROR = re.compile(r"^E +(.+)$", re.MULTILINE)
_TOOK = re.compile(r"^([\d.]+)s (?:call|setup|teardown) +(tests/.+?)::", re.MULTILINE)
_SILENT = 5 / 6  # of a run's limit without a sign of a test: 150 s, longer than a test's timeout
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.1
_FLAGS = ("-std=c11", "-fvisibility=hidden", "-fPIC", "-O3", "-w", "-D_GNU_SOURCE=1")


class Outcome(NamedTuple):
    """
    What came of a run.

    Args:
        kind: "passed"; "failed"; "timeout", if it hung; "unfinished", if the time was too short;
            "invalid", if there was no run, as the mistake does not compile.
        durations: The seconds of each file of tests.
    """

    kind: str
    seconds: float
    test: str = ""
    error: str = ""
    durations: Mapping[str, float] = MappingProxyType({})


class Tree:
    """The copy; its tests import the package from it, in each process that they start."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="mutants-"))
        shutil.copytree(
            ROOT, self.root, ignore=shutil.ignore_patterns(*_IGNORED), dirs_exist_ok=True
        )
        # What a killed run leaves becomes a child of this process, which ends it.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def close(self) -> None:
        """Remove the copy, after all that ran in it."""
        end_children()
        shutil.rmtree(self.root, ignore_errors=True)

    @contextmanager
    def planted(self, mutant: Mutant) -> Iterator[bool]:
        """Make the mistake, and take it back. Yields False if it does not compile."""
        if mutant.path.endswith(".c"):
            self._build_all()
        try:
            yield self._write(mutant.path, mutant.text())
        finally:
            self._write(mutant.path, (ROOT / mutant.path).read_text())

    def run(self, tests: list[str], limit_s: float, seed: int, *options: str) -> Outcome:
        """Run files of tests, in this order, until one fails."""
        began_s = time.monotonic()
        status, said = self._pytest(limit_s, "-x", "--seed", str(seed), *options, *tests)
        return _outcome(status, said, round(time.monotonic() - began_s, 1))

    def failures(self, tests: list[str], limit_s: float, seed: int) -> list[str]:
        """Run tests, all of them, and list those that fail; all, if they take too long."""
        status, said = self._pytest(limit_s, "--seed", str(seed), *tests)
        return tests if isinstance(status, str) else _FAILED.findall(said)

    def _pytest(self, limit_s: float, *arguments: str) -> tuple[int | str, str]:
        """Run pytest. Returns its exit status, or why it was ended, and its output."""
        log = self.root / "mutants.log"
        with open(log, "wb") as output:
            program = subprocess.Popen(
                [sys.executable, *_PYTEST, *arguments],
                cwd=self.root,
                env={**os.environ, "PYTHONPATH": str(self.root)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return _wait(program, log, limit_s), log.read_text(errors="replace")

    def _write(self, path: str, text: str) -> bool:
        """Write a source. Returns False if it does not compile."""
        target = self.root / path
        target.write_text(text)
        if path.endswith(".c"):
            return self._build(target)
        for stale in (target.parent / "__pycache__").glob(f"{target.stem}.*"):
            stale.unlink()  # it is told by size and second, which may be the same
        return True

    def _build_all(self) -> None:
        """Build the extension, once, so that a file's object can be put in its place later."""
        if not self._objects:
            command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
            subprocess.run(
                [*command, "--force", f"--build-temp={self.root / 'build' / 'mutants'}"],
                cwd=self.root,
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def _build(self, source: Path) -> bool:
        """Compile one source, and link the extension anew."""
        (target,) = (each for each in self._objects if each.name == f"{source.stem}.o")
        includes = [f"-I{self.root / 'csrc'}", f"-I{sysconfig.get_path('include')}"]
        includes.append(f"-I{numpy.get_include()}")
        compiled = subprocess.run(
            ["cc", *_FLAGS, *includes, "-c", str(source), "-o", str(target)], capture_output=True
        )
        if compiled.returncode == 0:
            (extension,) = (self.root / "shmloader" / "core").glob("_core*.so")
            link = ["cc", "-shared", "-pthread", *map(str, self._objects), "-o", str(extension)]
            subprocess.run(link, check=True)
        return compiled.returncode == 0

    @property
    def _objects(self) -> list[Path]:
        return sorted((self.root / "build" / "mutants").rglob("*.o"))


def _outcome(status: int | str, said: str, seconds: float) -> Outcome:
    """Read what came of a run: its exit status, or how it was ended."""
    if isinstance(status, str):
        return Outcome(status, seconds)
    failed, why = _FAILED.search(said), _ERROR.search(said)
    test, error = failed[1] if failed else "", why[1] if why else f"exit code {status}"
    took: Counter[str] = Counter()
    for each, file in _TOOK.findall(said):
        took[file] += float(each)
    if status == 0:
        return Outcome("passed", seconds, durations=took)
    return Outcome("failed", seconds, test, error, took)


def _wait(program: subprocess.Popen[bytes], log: Path, limit_s: float) -> int | str:
    """Wait for a program, then end all that it left. Returns its status, or why it was ended."""
    size, began_s = 0, time.monotonic()
    grown_s = began_s
    status: int | str | None = None
    while (status := program.poll()) is None:
        _reap(program.pid)
        time.sleep(_POLL_S)
        now_s = time.monotonic()
        if log.stat().st_size != size:
            size, grown_s = log.stat().st_size, now_s
        is_silent = now_s - grown_s > _SILENT * limit_s
        if is_silent or now_s - began_s > limit_s:
            status = "timeout" if is_silent else "unfinished"
            break
    end_children(program.pid)
    program.wait()
    return status


def end_children(spared: int = 0) -> None:
    """End all processes that come from this one, but reap the one that another waits for not."""
    while left := [pid for pid in _children() if pid != spared or _runs(pid)]:
        for pid in left:
            send(pid, signal.SIGKILL)  # its own children come here, to be ended in the next round
        _reap(spared)
        time.sleep(0.01)


def _reap(spared: int) -> None:
    for pid in _children():
        if pid != spared:
            os.waitpid(pid, os.WNOHANG)


def _runs(pid: int) -> bool:
    """Returns True if a child is no zombie."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"


def _children() -> list[int]:
    own = os.getpid()
    return [int(each) for each in Path(f"/proc/{own}/task/{own}/children").read_text().split()]

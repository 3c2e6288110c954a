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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy

from tests.helpers.programs import send
from tests.mutants.site import ROOT, Mutant

_IGNORED = (".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", ".benchmarks")
_PYTEST = ("-m", "pytest", "-x", "-q", "--benchmark-disable", "-p", "no:cacheprovider")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)(?: - (.*))?$", re.MULTILINE)
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.1
_FLAGS = ("-std=c11", "-fvisibility=hidden", "-fPIC", "-O3", "-w", "-D_GNU_SOURCE=1")


class Outcome(NamedTuple):
    """What came of a run: "passed", "failed", "timeout" or "broken", and the test that failed."""

    kind: str
    seconds: float
    test: str = ""
    error: str = ""


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
        """Remove the copy."""
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
        log = self.root / "mutants.log"
        environment = {**os.environ, "PYTHONPATH": str(self.root)}
        with open(log, "wb") as output:
            program = subprocess.Popen(
                [sys.executable, *_PYTEST, "--seed", str(seed), *options, *tests],
                cwd=self.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        status = _wait(program, began_s + limit_s)
        failed = _FAILED.search(log.read_text(errors="replace"))
        test, error = failed.groups("") if failed else ("", f"exit code {status}")
        kind = "timeout" if status is None else "failed" if status else "passed"
        return Outcome(kind, round(time.monotonic() - began_s, 1), test, error if status else "")

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


def _wait(program: subprocess.Popen[bytes], deadline_s: float) -> int | None:
    """Wait for a program, then end all that it left. Returns None if it took too long."""
    while program.poll() is None and time.monotonic() < deadline_s:
        _reap(program.pid)
        time.sleep(_POLL_S)
    status = program.poll()
    while left := _children(os.getpid()):
        for pid in left:
            send(pid, signal.SIGKILL)  # its own children come here, to be ended in the next round
        program.poll()
        _reap(program.pid)
        time.sleep(0.01)
    return status


def _reap(spared: int) -> None:
    for pid in _children(os.getpid()):
        if pid != spared:
            os.waitpid(pid, os.WNOHANG)


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

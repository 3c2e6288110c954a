"""One run of one contender in a process of its own."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

from bench.report import machine

_RUN_S = 300  # a run that takes longer has failed


def run(load: str, name: str, options: argparse.Namespace, checkout: Path | None = None) -> dict:
    """
    Start bench.run for one contender and read its line; a failure is a record too.

    Args:
        options: Has what bench.run's parser calls its shared options.
        checkout: The folder that the run's shmloader comes from instead of this checkout.
    """
    with tempfile.TemporaryDirectory() as folder:
        variables = _environment(checkout, Path(folder)) if checkout else None
        return _run(load, name, options, variables)


def _environment(checkout: Path, folder: Path) -> dict[str, str]:
    """Let `import shmloader` find the other checkout's, and `import bench` still this one's."""
    (folder / "shmloader").symlink_to(checkout.resolve() / "shmloader")
    # Safe path: otherwise the current folder, which has this checkout's shmloader, comes first.
    path = os.pathsep.join([str(folder), str(machine.CHECKOUT)])
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def _run(
    load: str, name: str, options: argparse.Namespace, environment: dict[str, str] | None
) -> dict:
    command = [sys.executable, "-m", "bench.run", "--workload", load, "--contender", name]
    command += ["--workers", str(options.workers), "--epochs", str(options.epochs)]
    command += ["--context", options.context]
    command += ["--batches", str(options.batches)] if options.batches else []
    command += [f"--{switch}" for switch in ("restart", "syscalls") if getattr(options, switch)]
    failed = {"workload": load, "contender": name, "correct": False}
    # Files, not pipes: torch's shared-memory manager outlives the run with our end in its hand.
    with tempfile.TemporaryFile("w+") as line, tempfile.TemporaryFile("w+") as errors:
        try:
            subprocess.run(
                command, cwd=machine.CHECKOUT, env=environment, stdout=line, stderr=errors,
                timeout=_RUN_S,
            )  # fmt: skip
            return json.loads(_text(line).rpartition("\n")[2])
        except subprocess.TimeoutExpired:
            return {**failed, "mistake": f"no result within {_RUN_S} s"}
        except json.JSONDecodeError:
            return {**failed, "mistake": _text(errors)[-600:] or "the process printed nothing"}


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read().strip()

"""Two programs in memory groups in which torch's runs: what a container does to a program."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench import processes
from bench.contenders import BASELINE, BEFORE, SUBJECT
from bench.report import machine
from bench.report.rows import Rows

_ROWS = {"sizes at random": 1_300, "train and val, persistent": 1_100}  # in MB
_LONGEST_S = 120

# Where a group is made, the file of its limit, and that of the most it ever held.
_VERSIONS = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max", "memory.peak"),
)
_COLUMNS = {
    "row": "name",
    "loader": "contender",
    "group, MB": "limit_mb",
    "most it held, MB": "most_mb",
    "outcome": "outcome",
}


def main(before: Path | None) -> int:
    """Print a row per program and loader; the exit code is 0 if torch's and ours pass."""
    try:
        _place()
    except OSError as reason:
        print(f"Nothing was run: {reason}.")
        return 0
    table = Rows(_COLUMNS)
    passed = True
    for name, limit_mb in _ROWS.items():
        checksums = {}
        for contender in [BASELINE, SUBJECT, *([BEFORE] if before else [])]:
            found = _run(name, contender, limit_mb, before)
            checksums[contender] = found.pop("checksum", None)
            if found["outcome"] == "passes" and checksums[contender] != checksums[BASELINE]:
                found["outcome"] = "WRONG: its batches are not torch's"
            table.add({"name": name, "contender": contender, "limit_mb": limit_mb, **found})
            passed = passed and (found["outcome"] == "passes" or contender == BEFORE)
    return 0 if passed else 1


def _run(name: str, contender: str, limit_mb: int, before: Path | None) -> dict:
    """Run a row in its whole size in a new group, with an interpreter that belongs to it too."""
    command = [sys.executable, "-m", "bench.questions.cliffs.run", name, contender, "--full"]
    with _group(limit_mb) as group, tempfile.TemporaryDirectory() as folder:
        checkout = before if contender == BEFORE else None
        environment = processes.environment(checkout, Path(folder)) if checkout else None
        done = _in_group(group, command, environment)
        most_mb = _most_mb(group)
    if done.returncode:
        killed = done.returncode in (-9, 137)
        last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        outcome = "killed" if killed else textwrap.shorten(last.replace("|", "/"), 120)
        return {"outcome": outcome, "most_mb": most_mb}
    found = json.loads(done.stdout.splitlines()[-1])
    return {"outcome": "passes", "most_mb": most_mb, "checksum": found["checksum"]}


def _in_group(
    group: Path, command: list[str], environment: dict[str, str] | None
) -> subprocess.CompletedProcess[str]:
    """Run a command whose process joins the group before it becomes the interpreter."""
    join = f'echo $$ > "{group}/cgroup.procs" && exec "$@"'
    # Files, not pipes: torch's shared-memory manager outlives the run with our end in its hand.
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        try:
            status = subprocess.run(
                ["sh", "-c", join, "sh", *command], cwd=machine.CHECKOUT, env=environment,
                stdout=output, stderr=errors, timeout=_LONGEST_S,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 1, "", f"no end within {_LONGEST_S} s")
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(command, status, output.read(), errors.read())


@contextmanager
def _group(limit_mb: int) -> Iterator[Path]:
    """Make a group of this size, and take it away."""
    group, limit, _ = _place()
    group.mkdir()
    try:
        (group / limit).write_text(str(limit_mb * 1_000_000))
        yield group
    finally:
        _empty(group)
        group.rmdir()


def _place() -> tuple[Path, str, str]:
    """
    Find where a group with a limit can be made: its folder, and the names of its files.

    Raises:
        OSError: Not with version 1 and not with version 2.
    """
    for root, limit, most in _VERSIONS:
        group = root / f"shmloader-cliffs-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        has_limit = os.access(group / limit, os.W_OK)
        group.rmdir()
        if has_limit:
            return group, limit, most
    raise OSError("no control group with a memory limit can be made here, of neither version")


def _empty(group: Path) -> None:
    """End what a run left in its group, and wait until nothing is there."""
    deadline = time.monotonic() + _LONGEST_S
    while pids := (group / "cgroup.procs").read_text().split():
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {' '.join(pids)} do not end")
        time.sleep(0.05)


def _most_mb(group: Path) -> float | None:
    """Read the most that the group held; older kernels of version 2 do not say."""
    for _, _, most in _VERSIONS:
        try:
            return int((group / most).read_text()) / 1e6
        except OSError:
            continue
    return None

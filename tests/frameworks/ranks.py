"""Programs of two ranks: each writes what it trained and whose iterators it made, per way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.helpers.programs import search_path

from .ways import Made

LONGEST_S = 240.0  # three trainings of two processes that import a framework; a hang takes longer
GRACE_S = 10.0  # for its end, and the check of what is left
RANKS = 2
HERE = Path(__file__).parent


def write(
    folder: str | Path, way: object, rank: int, losses: list[Any], made: Made, **extra: Any
) -> None:
    """Note a rank's training for the test; what is extra must be equal too."""
    outcome = {"losses": losses, **extra, "ours": made.ours, "torchs": made.torchs}
    Path(folder, f"{way}-{rank}.json").write_text(json.dumps(outcome))


def run(program: str, folder: Path, *arguments: str, launcher: Sequence[str] = ()) -> None:
    """
    Run a program of this folder to its end, and every process that it started.

    Raises:
        AssertionError: It failed, or took too long.
    """
    command = [sys.executable, *launcher, str(HERE / f"{program}.py"), str(folder), *arguments]
    log = folder / "output.txt"
    environment = {"PYTHONPATH": search_path(), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        try:
            status = process.wait(LONGEST_S - GRACE_S)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    assert status == 0, f"exit status {status}:\n{log.read_text()[-6000:]}"


def outcomes(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Returns what the ranks wrote, by way, in the order of ranks."""
    by_way: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*-[0-9].json")):
        by_way.setdefault(path.stem.rpartition("-")[0], []).append(json.loads(path.read_text()))
    return by_way


def assert_same_on_all_ranks(
    program: str,
    folder: Path,
    *arguments: str,
    launcher: Sequence[str] = (),
) -> dict[str, list[dict[str, Any]]]:
    """
    Check that each way had torch's losses on each rank, and iterators of ours alone.

    Returns:
        What the ranks wrote, by way, torch's too.
    """
    run(program, folder, *arguments, launcher=launcher)
    by_way = outcomes(folder)
    theirs = by_way["torch"]

    assert len(by_way) > 1
    for way, ranks in by_way.items():
        assert RANKS == len(ranks), way
        for ours, torchs in zip(ranks, theirs, strict=True):
            assert torchs["losses"]
            assert without_counts(torchs) == without_counts(ours), way
            used, unused = ("torchs", "ours") if way == "torch" else ("ours", "torchs")
            assert ours[used] > 0, way
            assert ours[unused] == 0, way
    # Ranks that saw the same batches would be no test of their shares.
    assert theirs[0]["losses"] != theirs[1]["losses"]
    return by_way


def without_counts(outcome: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in outcome.items() if name not in ("ours", "torchs")}

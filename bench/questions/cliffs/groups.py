"""Two programs in memory groups in which torch's runs: what a container does to a program."""

import json
import sys
import tempfile
import textwrap
from pathlib import Path

from bench import groups, processes
from bench.contenders import BASELINE, BEFORE, SUBJECT
from bench.report.rows import Rows

_ROWS = {"sizes at random": 1_300, "train and val, persistent": 1_100}  # in MB
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
        groups.check()
    except groups.Unavailable as reason:
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
    with groups.group(limit_mb) as group, tempfile.TemporaryDirectory() as folder:
        checkout = before if contender == BEFORE else None
        environment = processes.environment(checkout, Path(folder)) if checkout else None
        done = groups.run(group, command, environment)
        most_mb = groups.most_mb(group)
    if done.returncode:
        killed = done.returncode in (-9, 137)
        last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        outcome = "killed" if killed else textwrap.shorten(last.replace("|", "/"), 120)
        return {"outcome": outcome, "most_mb": most_mb}
    found = json.loads(done.stdout.splitlines()[-1])
    return {"outcome": "passes", "most_mb": most_mb, "checksum": found["checksum"]}

"""The smallest control group in which a run passes, found by trying; or the most that it takes."""

import json
import textwrap
from dataclasses import dataclass
from subprocess import CompletedProcess

from bench import groups
from bench.questions.memory.run import Row, command
from bench.questions.memory.watch import watch

_AMPLE_MB = 1e6
_FROM, _TO = 0.4, 1.04  # times the most that the group held without a limit
_STEPS = 4


@dataclass(frozen=True)
class Outcome:
    """What came of a run: a digest of its batches, or None and the reason."""

    digest: str | None
    reason: str


def least_mb(row: Row, has_groups: bool) -> tuple[float, str]:
    """
    Find how much memory a run needs, in MB.

    With groups it is the smallest in which it passes, to 4 % of the most that it takes without a
    limit: it may take more than it needs. Without them it is that most, of looks at its processes.

    Returns:
        That, and the digest of its batches.

    Raises:
        RuntimeError: The run fails without a limit.
    """
    if not has_groups:
        looks = watch(row)
        return max(look.bytes for look in looks.looks) / 1e6, looks.digest
    with groups.group(_AMPLE_MB) as group:
        free = _outcome(groups.run(group, command(row)))
        most = groups.most_mb(group)
    if free.digest is None or most is None:
        raise RuntimeError(f"{row} fails without a limit: {free.reason}")
    low, high = _FROM * most, _TO * most
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if run_in(row, middle).digest == free.digest:
            high = middle
        else:
            low = middle
    return high, free.digest


def run_in(row: Row, limit_mb: float) -> Outcome:
    """Run a row in a group of this size."""
    with groups.group(limit_mb) as group:
        return _outcome(groups.run(group, command(row)))


def _outcome(done: CompletedProcess[str]) -> Outcome:
    if done.returncode == 0:
        return Outcome(json.loads(done.stdout.splitlines()[-1])["digest"], "passes")
    if done.returncode in (-9, 137):
        return Outcome(None, "killed")
    last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
    return Outcome(None, textwrap.shorten(last.replace("|", "/"), 120))

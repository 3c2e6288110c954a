"""
The rows of a question, each in a process of its own, contenders in turns, and what comes of them.

    python -m bench.driver bench.run '{"workload": "cifar", "contender": "ours"}'

calls `run` of a module, or the function named behind, with these arguments, and prints what that
returns.
"""

import importlib
import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, TypeVar

from bench.report.machine import CHECKOUT

Name = TypeVar("Name")

# A function of a module, with its arguments, which JSON can say; what it returns is so, too.
Row = partial[dict]


def in_turns(
    names: Iterable[Name], rounds: int, measure: Callable[[Name], dict]
) -> dict[Name, list[dict]]:
    """
    Measure each contender once a round; another one comes first in each, so that none always does.

    Returns:
        What was found of each, round by round.
    """
    names = list(names)
    found: dict[Name, list[dict]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            found[name].append(measure(name))
    return found


def children(rows: Mapping[Name, Row], rounds: int) -> dict[Name, list[dict]]:
    """Run the row of each contender once a round, each time in a process of its own."""
    return in_turns(rows, rounds, lambda name: alone(rows[name]))


def middle(runs: Iterable[dict], field: str, scale: float = 1.0) -> float | None:
    """Return the median of a figure over the runs that have it, or None if none has."""
    values = [run[field] for run in runs if run.get(field) is not None]
    return scale * median(values) if values else None


def middles(runs: Iterable[dict], fields: dict[str, str]) -> dict[str, Any]:
    """Return the medians of figures by their titles, and as `correct` if all runs were."""
    figures = {title: middle(runs, field) for title, field in fields.items()}
    return {**figures, "correct": all(run["correct"] for run in runs)}


def ratio(above: Iterable[dict], below: Iterable[dict], field: str) -> float | None:
    """Return the median of the ratios of a figure, each within its round, or None."""
    values = ratios(above, below, field)
    return median(values) if values else None


def ratios(above: Iterable[dict] | None, below: Iterable[dict], field: str) -> list[float]:
    """List the ratios of a figure, each within its round; none if there is nothing above."""
    pairs = zip(above, below, strict=True) if above else ()
    return [one[field] / other[field] for one, other in pairs if one.get(field) and field in other]


def runnable(names: Iterable[str], why_not: Callable[[str], str | None], none: str) -> list[str]:
    """Drop what cannot run here, and say why; if nothing is left, `none` ends the command."""
    reasons = {name: why_not(name) for name in names}
    for name, reason in reasons.items():
        if reason:
            print(f"skipped {name}: {reason}", file=sys.stderr)
    return [name for name in reasons if not reasons[name]] or sys.exit(none)


def missing(*modules: str) -> str | None:
    """Say which module cannot be imported, or None if all can."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            return f"{error} (an optional extra installs it, see bench/README.md)"
    return None


def mistakes(found: dict[str, list[dict]]) -> dict[str, str]:
    """Collect a mistake of each contender that made one."""
    return {
        name: run["mistake"] for name, runs in found.items() for run in runs if run.get("mistake")
    }


@dataclass(frozen=True)
class Ended:
    """
    How a row ended in a process of its own.

    Attributes:
        status: The exit status; None: it took too long.
        found: What it returned; None if it failed.
        said: What was written to stderr.
    """

    status: int | None
    found: dict | None
    said: str

    @property
    def reason(self) -> str:
        """How it ended: "passes", "killed", in no time, or with the last line of stderr."""
        if self.status is None:
            return "no end in the time that it had"
        if self.status in (-signal.SIGKILL, 128 + signal.SIGKILL):
            return "killed"
        if self.found is not None:
            return "passes"
        last = (self.said.strip() or f"exit code {self.status}").splitlines()[-1]
        return last.replace("|", "/")  # which a table has between its cells


def end_of(
    row: Row,
    longest_s: float,
    within: Sequence[str] = (),
    look: Callable[[int], None] | None = None,
    **variables: str,
) -> Ended:
    """
    Run a row in a process of its own, to its end.

    Args:
        within: A command that becomes the row's.
        look: Called with the process id again and again; it sleeps between two looks.
        variables: More of the environment.
    """
    given = dict(zip(inspect.signature(row.func).parameters, row.args, strict=False))
    given |= row.keywords
    command = [row.func.__module__, json.dumps(given), row.func.__name__]
    # Files, not pipes: torch's shared-memory manager outlives the run with our end in its hand.
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [*within, sys.executable, "-m", "bench.driver", *command], cwd=CHECKOUT,
            env=os.environ | variables, stdout=output, stderr=errors,
        )  # fmt: skip
        latest = time.monotonic() + longest_s
        try:
            while look and process.poll() is None and time.monotonic() < latest:
                look(process.pid)
            status = process.wait(max(0.0, latest - time.monotonic()))
        except subprocess.TimeoutExpired:
            status = None
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        errors.seek(0)
        found = _last_line(output.read()) if status == 0 else None
        return Ended(status, found, errors.read())


def _last_line(output: str) -> dict | None:
    try:
        return json.loads(output.strip().rpartition("\n")[2])
    except json.JSONDecodeError:
        return None


def alone(row: Row, longest_s: float = 400, **more: Any) -> dict:
    """Run a row in a process of its own, which must not fail; more: of `end_of`."""
    ended = end_of(row, longest_s, **more)
    if ended.found is None:
        sys.exit(f"{row}: {ended.reason}\n{ended.said}")
    return ended.found


def tried(row: Row, longest_s: float, **variables: str) -> dict:
    """Run a row in a process of its own; a failure is a record too, with its `mistake`."""
    ended = end_of(row, longest_s, **variables)
    return ended.found or {"correct": False, "mistake": f"it failed: {ended.reason}"}


def settle() -> None:
    """Let this process compute with one thread, and torch say nothing of few cores."""
    import torch  # only here: help needs none of it

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "This DataLoader will create")


def _run(module: str, given: str, function: str = "run") -> None:
    settle()
    print(json.dumps(getattr(importlib.import_module(module), function)(**json.loads(given))))


if __name__ == "__main__":
    _run(*sys.argv[1:])

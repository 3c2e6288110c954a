"""Running SPIN: generate a checker from a model, compile it, run it, read what it printed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .cases import Run

HERE = Path(__file__).resolve().parent
MISSING = "spin is missing: install it with `apt-get install spin` or `brew install spin`"
LONGEST_S = 600
DEPTH = 10_000
LONG, SHORT = "-Og", "-O0"  # what the compiler is told; with more it takes longer than it saves
MEMORY_MB = 1900  # of one search: two at a time stay below 4 GiB

# What `pan` says of a search that left something out: too deep, out of memory, interrupted.
LIMITED = re.compile(r"^error:|Search not completed|MEMLIM bound|errors: [1-9]", re.MULTILINE)

# How `pan` lists what it never executed, and all there is.
UNREACHED = re.compile(
    r"^\t\S+:(?P<line>\d+), state (?P<state>\d+), \"(?P<text>.*)\"$", re.MULTILINE
)
STATEMENT = re.compile(
    r"^\tstate +(?P<state>\d+) -\(tr.*\] \S+:(?P<line>\d+) => (?P<text>.*)$", re.MULTILINE
)


class CheckerError(Exception):
    """A model that cannot be checked, or not exhaustively."""


@dataclass(frozen=True)
class Outcome:
    """
    What one search found.

    Args:
        fault: How the first fault shows; empty if there is none.
        idle: Statements that were never executed, with their process and line.
    """

    fault: str
    idle: frozenset[str]


def is_here() -> bool:
    """Returns True if SPIN is installed."""
    return shutil.which("spin") is not None


def compiler() -> str:
    """Name the C compiler to use."""
    return os.environ.get("CC") or shutil.which("cc") or "gcc"


def check(run: Run, optimise: str = LONG) -> Outcome:
    """
    Search a model.

    Args:
        optimise: LONG for a search that runs long, SHORT for one that will find a fault early.

    Raises:
        CheckerError: The model is not accepted, or the search was not exhaustive.
    """
    with tempfile.TemporaryDirectory(prefix="model-") as folder:
        build(run, Path(folder), "NP" if run.ends else "SAFETY", optimise)
        printed = call(["./pan", f"-m{DEPTH}", *(["-l"] if run.ends else [])], folder)
        table = call(["./pan", "-d"], folder)
    return read(printed, table)


def trace(run: Run) -> str:
    """Describe the shortest way to a model's fault, step by step."""
    with tempfile.TemporaryDirectory(prefix="model-") as folder:
        build(run, Path(folder), "NP" if run.ends else "BFS", SHORT)
        call(["./pan", f"-m{DEPTH}", *(["-l"] if run.ends else [])], folder)
        return call(["spin", "-t", "-p", *flags(run), f"{run.model}.pml"], folder)


def build(run: Run, folder: Path, search: str, optimise: str) -> None:
    """Make the program `pan`, which searches the model."""
    for model in HERE.glob("*.pml"):
        shutil.copy(model, folder)
    # -o3: statements are not merged, so that each is known to be executed or not.
    said = call(["spin", "-a", "-o3", *flags(run), f"{run.model}.pml"], folder)
    if "error" in said.lower():
        raise CheckerError(f"spin does not accept {run.model}.pml: {said}")
    switches = [f"-D{search}", f"-DMEMLIM={MEMORY_MB}"]
    said = call([compiler(), optimise, "-w", *switches, "-o", "pan", "pan.c"], folder)
    if not (folder / "pan").exists():
        raise CheckerError(f"{compiler()} does not compile {run.model}.pml: {said}")


def flags(run: Run) -> list[str]:
    """List what the model is preprocessed with."""
    return [f"-D{define}" for define in run.defines]


def call(command: list[str], folder: str | Path) -> str:
    """
    Run a command in a folder.

    Returns:
        What it printed.
    """
    done = subprocess.run(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LONGEST_S,
    )
    return done.stdout


def read(printed: str, table: str) -> Outcome:
    """Read what `pan` printed, and its table of statements."""
    fault = re.search(r"^pan:1: (.*?) \(at depth \d+\)$", printed, re.MULTILINE)
    if "Full statespace search" not in printed or (fault is None and LIMITED.search(printed)):
        raise CheckerError(printed)
    return Outcome(fault[1] if fault else "", idle_statements(printed, table))


def idle_statements(printed: str, table: str) -> frozenset[str]:
    """
    List the statements that were never executed, in none of the copies that inlines make.

    A statement is known by its line and text: which file it is from is not told of all copies.
    """
    idle = statements(r"unreached in proctype (\w+)\n", UNREACHED, printed)
    executed = statements(r"proctype (\w+)\n", STATEMENT, table) - idle
    return frozenset(
        f"{process}, line {line}: {text}"
        for process, line, text in {what for what, _ in idle} - {what for what, _ in executed}
    )


def statements(
    heading: str, pattern: re.Pattern[str], text: str
) -> set[tuple[tuple[str, str, str], str]]:
    """
    Find the statements in a list of `pan`'s, below a heading for each process.

    Returns:
        ((process, line, text), state) of each; the ends of endless processes are left out.
    """
    parts = re.split(heading, text)
    return {
        ((process, match["line"], match["text"]), match["state"])
        for process, lines in zip(parts[1::2], parts[2::2], strict=True)
        for match in pattern.finditer(lines)
        if match["text"] != "-end-"
    }

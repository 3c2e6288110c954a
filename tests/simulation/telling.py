"""A run in words: which process did what, and where in the sources."""

from __future__ import annotations

from typing import Any

from tests.helpers.kill_steps import ROOT, names
from tests.simulation.door import places_of_steps
from tests.simulation.lines import files


def told(trace: list[list[Any]], most: int) -> str:
    """Say what happened last in a run, a line for each event."""
    steps, places, paths = names(), places_of_steps(), files(ROOT / "shmloader")
    lines = []
    for actor, kind, number in trace[-most:]:
        words = kind
        if kind == "step":
            name = steps[number] if number < len(steps) else "a step that is not listed"
            words = f"{places.get(name, '?')}: {name}"
        elif kind == "line":
            words = _line(number, paths)
        elif kind == "forks":
            words = f"forks process {number}"
        lines.append(f"{_name(actor)}  {words}")
    return "\n".join(lines)


def _name(actor: int) -> str:
    return "trainer  " if actor == 0 else f"process {actor}"


def _line(number: int, paths: list[str]) -> str:
    file, line = divmod(number, 1 << 16)
    if file == 0:
        return "has forked" if line == 0 else "looks at what it inherited"
    return f"{paths[file - 1]}:{line}"

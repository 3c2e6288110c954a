"""Training twice, with torch's loader and with ours, and the table of what came out."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from .needs import version_of
from .training import seed, trainer_cpu_s
from .ways import INSTALL, TORCH, WAYS, Made, Way, spied

ROWS = "frameworks"  # the property of a report that carries a row of the table
HERE = Path(__file__).parent
COLUMNS = (
    "framework",
    "version",
    "use",
    "way",
    "same loss",
    "iterators",
    "batches/s",
    "CPU ms/batch",
)


@dataclass
class Trial:
    """One training: what came out, whose iterators it made, and what it took."""

    losses: list[Any]
    made: Made
    wall_s: float
    cpu_s: float


def tried(way: Way, train: Callable[[Way], list[Any]]) -> Trial:
    seed()
    with way.active(), spied() as made:
        wall, cpu = time.perf_counter(), trainer_cpu_s()
        losses = train(way)
        wall, cpu = time.perf_counter() - wall, trainer_cpu_s() - cpu
    gc.collect()  # what a framework's cycles hold of a loader goes before the next training
    return Trial(losses, made, wall, cpu)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Train with one thread: others would wait for a core in a loop while workers need it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=WAYS, ids=str)
def way(request: pytest.FixtureRequest) -> Way:
    """Each way to train with our loader."""
    return request.param


@pytest.fixture
def compare(record_property: Callable[[str, object], None]) -> Callable[..., Trial]:
    """Train in a way, and demand torch's losses and our iterator."""

    def compare(
        framework: str,
        use: str,
        train: Callable[[Way], list[Any]],
        way: Way = INSTALL,
        measured: bool = False,
    ) -> Trial:
        """
        Train with torch's loader, or one that has the same losses, then with ours.

        Args:
            framework: The name of its distribution.
            use: What of it is tried.
            train: Trains from the seeds that were set, and returns what must be equal, one item
                for each step.
            way: How it gets our loader.
            measured: Do it twice, and show the second times in the table.
        """
        like = way.like or TORCH
        theirs, ours = tried(like, train), tried(way, train)
        if measured:
            theirs, ours = tried(like, train), tried(way, train)
        row = {
            "framework": framework,
            "version": version_of(framework),
            "use": use,
            "way": str(way),
            "same loss": "yes" if theirs.losses == ours.losses else "NO",
            "iterators": f"{ours.made.ours} ours, {ours.made.torchs} torch's",
            "batches/s": "",
            "CPU ms/batch": "",
        }
        if measured:
            pair = (ours, theirs)
            row["batches/s"] = beside(*(len(each.losses) / each.wall_s for each in pair))
            row["CPU ms/batch"] = beside(*(1e3 * each.cpu_s / len(each.losses) for each in pair))
        record_property(ROWS, json.dumps(row))

        assert theirs.losses
        assert theirs.losses == ours.losses
        assert ours.made.ours > 0
        assert ours.made.torchs == 0
        if like is TORCH:
            assert theirs.made.ours == 0
        return ours

    return compare


def beside(ours: float, theirs: float) -> str:
    return f"{ours:.3g} (torch {theirs:.3g})"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            # A framework's warnings are its own affair; ours are not.
            item.add_marker(
                pytest.mark.filterwarnings(
                    "ignore",
                    "error::shmloader.RetentionWarning",
                    "error::shmloader.RestartWarning",
                )
            )


def pytest_terminal_summary(terminalreporter: Any) -> None:
    rows = [
        json.loads(value)
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, value in report.user_properties
        if name == ROWS
    ]
    if not rows:
        return
    terminalreporter.section(
        "frameworks; rate and trainer CPU are of short trainings, their start included"
    )
    lines = [COLUMNS, *(tuple(row[column] for column in COLUMNS) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        terminalreporter.write_line("  ".join(cells).rstrip())

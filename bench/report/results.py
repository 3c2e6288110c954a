"""Records of runs, kept as JSON lines, and the figures that compare them."""

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.contenders import BASELINE, BEFORE, LIMIT
from bench.loads.pools import WORKLOADS


@dataclass(frozen=True)
class Cell:
    """All runs of one contender on one workload."""

    workload: str
    contender: str
    runs: list[dict]

    @property
    def label(self) -> str:
        """The contender's name in tables and pictures."""
        return self.runs[-1].get("label", self.contender)

    @property
    def correct(self) -> bool:
        """Returns True if every batch of every run was right."""
        return all(run["correct"] for run in self.runs)

    @property
    def refused(self) -> str | None:
        """The reason why this contender cannot do this workload, or None."""
        return self.runs[-1].get("refused")

    def middle(self, name: str) -> float | None:
        """Return the median of one figure over the runs, or None if this contender has none."""
        return _middle(self.values(name))

    def values(self, name: str) -> list[float]:
        """Return one figure of each run that has it."""
        return [run[name] for run in self.runs if run.get(name) is not None]


class Results:
    """The runs of one benchmark, by workload and contender."""

    def __init__(self, runs: list[dict]):
        self.runs = runs

    @classmethod
    def read(cls, path: Path) -> "Results":
        """Read the lines that `bench` wrote."""
        return cls([json.loads(line) for line in path.read_text().splitlines()])

    def workloads(self) -> list[str]:
        """List the workloads that were run, in the order of loads/pools.py."""
        return [name for name in WORKLOADS if any(run["workload"] == name for run in self.runs)]

    def contenders(self) -> list[str]:
        """List the contenders that were run, in the order of their first run."""
        return list(dict.fromkeys(run["contender"] for run in self.runs))

    def cell(self, workload: str, contender: str) -> Cell | None:
        """Return the runs of one contender on one workload, or None if there are none."""
        wanted = (workload, contender)
        runs = [run for run in self.runs if (run["workload"], run["contender"]) == wanted]
        return Cell(workload, contender, runs) if runs else None

    def cells(self) -> list[Cell]:
        """List every cell, workload by workload."""
        return [cell for workload in self.workloads() for cell in self.cells_of(workload)]

    def cells_of(self, workload: str) -> list[Cell]:
        """List the cells of one workload."""
        cells = [self.cell(workload, contender) for contender in self.contenders()]
        return [cell for cell in cells if cell]

    def times_baseline(self, cell: Cell) -> float | None:
        """Return torch's time over this contender's: the median of the repeats' ratios."""
        return _middle(self._ratios(cell, BASELINE))

    def times_before(self, cell: Cell) -> list[float]:
        """Return the other commit's time over this one's, a ratio for each repeat."""
        return self._ratios(cell, BEFORE)

    def efficiency(self, cell: Cell) -> float | None:
        """Return the limit's time over this contender's: the median of the repeats' ratios."""
        return _middle(self._ratios(cell, LIMIT))

    def _ratios(self, cell: Cell, other: str) -> list[float]:
        rival = self.cell(cell.workload, other)
        theirs = _by_repeat(rival) if rival else {}
        return [theirs[repeat] / ms for repeat, ms in _by_repeat(cell).items() if repeat in theirs]


def _middle(values: list[float]) -> float | None:
    return median(values) if values else None


def _by_repeat(cell: Cell) -> dict[int, float]:
    return {run["repeat"]: run["ms_per_batch"] for run in cell.runs if run.get("ms_per_batch")}

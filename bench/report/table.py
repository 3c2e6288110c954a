"""The results as tables: a short one on the terminal, both in table.md."""

from statistics import median

from bench.contenders import BASELINE, BEFORE, LIMIT, SUBJECT
from bench.report import machine
from bench.report.results import Cell, Results

Rows = list[list[str]]

_DETAILS = {
    "next() ms median": "next_ms_median",
    "p99": "next_ms_p99",
    "trainer CPU ms": "trainer_cpu_ms",
    "of it touching": "touch_cpu_ms",
    "worker CPU ms": "worker_cpu_ms",
    "faults trainer": "trainer_minor_faults",
    "major": "trainer_major_faults",
    "faults workers": "worker_minor_faults",
    "switches": "trainer_voluntary_switches",
    "descriptors": "descriptors_peak",
    "shared MB": "shared_mb_peak",
    "private MB": "private_mb_peak",
    "first batch s": "first_batch_s",
    "next epoch ms": "epoch_first_batch_ms",
}


def show(results: Results) -> None:
    """Print the comparison on the terminal."""
    print(markdown_table(*comparison(results)))


def markdown(results: Results, about: dict) -> str:
    """Write both tables, the machine and the command as a page."""
    parts = [
        "# Results\n",
        f"{machine.sentence(about)}.\n",
        f"Command: `{about['command']}`\n",
        "Lower is better except in the two ratios; the range is over the repeats. "
        f"The ratios are taken within each repeat, against {BASELINE} and {LIMIT}.\n",
        markdown_table(*comparison(results)),
        _refusals(results),
        "Per batch, except the peaks (held above what the process had before the loader was made) "
        "and the seconds. Descriptors and memory are those of all processes together.\n",
        markdown_table(*details(results)),
    ]
    return "\n".join(parts)


def comparison(results: Results) -> tuple[list[str], Rows]:
    """
    One row per workload and contender: time, spread, ratio to torch, efficiency, correctness.

    A run with another commit has one column more: its time over ours, and the range.
    """
    heads = ["workload", "contender", "MB", "ms per batch", "range", "times torch", "efficiency"]
    compared = BEFORE in results.contenders()
    rows = [
        [
            cell.workload,
            cell.label,
            figure(cell.middle("batch_mb")),
            figure(cell.middle("ms_per_batch")),
            span(cell.values("ms_per_batch")),
            figure(results.times_baseline(cell)),
            figure(results.efficiency(cell)),
            *([_beside_before(results, cell)] if compared else []),
            _verdict(cell),
        ]
        for cell in results.cells()
    ]
    return [*heads, *(["times before"] if compared else []), "correct"], rows


def details(results: Results) -> tuple[list[str], Rows]:
    """One row per workload and loader: what a batch costs besides time."""
    rows = [
        [cell.workload, cell.label, *(figure(cell.middle(name)) for name in _DETAILS.values())]
        for cell in results.cells()
        if cell.contender != LIMIT
    ]
    return ["workload", "contender", *_DETAILS], rows


def markdown_table(heads: list[str], rows: Rows) -> str:
    lines = [heads, ["---", "---", *("---:" for _ in heads[2:])], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _verdict(cell: Cell) -> str:
    if cell.refused:
        return "-"
    return "yes" if cell.correct else "NO"


def _beside_before(results: Results, cell: Cell) -> str:
    ratios = results.times_before(cell) if cell.contender == SUBJECT else []
    return f"{figure(median(ratios))} ({span(ratios)})" if ratios else "-"


def _refusals(results: Results) -> str:
    """Give the reason for each row of dashes."""
    cells = [cell for cell in results.cells() if cell.refused]
    return "".join(f"- {cell.label} refuses {cell.workload}: {cell.refused}.\n" for cell in cells)


def span(values: list[float]) -> str:
    """Word the range of some figures."""
    return f"{figure(min(values))} to {figure(max(values))}" if values else "-"


def figure(value: float | None) -> str:
    """Three significant digits without an exponent."""
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{float(f'{value:.3g}'):.6f}".rstrip("0").rstrip(".")


def shown(value: float | str | None) -> str:
    """Word a figure, an answer or a name for a table."""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return figure(value) if value is None or isinstance(value, float) else str(value)

"""The results as tables: a short one on the terminal, both in table.md."""

from collections.abc import Callable
from statistics import median

from rich.console import Console
from rich.table import Table

from bench.contenders import BASELINE, BEFORE, LIMIT, SUBJECT
from bench.report import machine
from bench.report.results import Cell, Results

Rows = list[list[str]]

_DETAILS: list[tuple[str, Callable[[Cell], str]]] = [
    ("next() ms median", lambda cell: figure(cell.middle("next_ms_median"))),
    ("p99", lambda cell: figure(cell.middle("next_ms_p99"))),
    ("trainer CPU ms", lambda cell: figure(cell.middle("trainer_cpu_ms"))),
    ("of it touching", lambda cell: figure(cell.middle("touch_cpu_ms"))),
    ("worker CPU ms", lambda cell: figure(cell.middle("worker_cpu_ms"))),
    ("faults trainer", lambda cell: figure(cell.middle("trainer_minor_faults"))),
    ("major", lambda cell: figure(cell.middle("trainer_major_faults"))),
    ("faults workers", lambda cell: figure(cell.middle("worker_minor_faults"))),
    ("switches", lambda cell: figure(cell.middle("trainer_voluntary_switches"))),
    ("descriptors", lambda cell: figure(cell.middle("descriptors_peak"))),
    ("shared MB", lambda cell: figure(cell.middle("shared_mb_peak"))),
    ("private MB", lambda cell: figure(cell.middle("private_mb_peak"))),
    ("first batch s", lambda cell: figure(cell.middle("first_batch_s"))),
    ("next epoch ms", lambda cell: figure(cell.middle("epoch_first_batch_ms"))),
]


def show(results: Results) -> None:
    """Print the comparison on the terminal."""
    heads, rows = comparison(results)
    table = Table(title="ms per batch, median over the runs")
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place < 2 else "right")
    for row in rows:
        table.add_row(*row, end_section=row is _last_of_workload(rows, row[0]))
    Console(width=120).print(table)


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
            _range(cell.values("ms_per_batch")),
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
        [cell.workload, cell.label, *(show_one(cell) for _, show_one in _DETAILS)]
        for cell in results.cells()
        if cell.contender != LIMIT
    ]
    return ["workload", "contender", *(head for head, _ in _DETAILS)], rows


def markdown_table(heads: list[str], rows: Rows) -> str:
    lines = [heads, ["---", "---", *("---:" for _ in heads[2:])], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _last_of_workload(rows: Rows, workload: str) -> list[str]:
    return [row for row in rows if row[0] == workload][-1]


def _verdict(cell: Cell) -> str:
    if cell.refused:
        return "-"
    return "yes" if cell.correct else "NO"


def _beside_before(results: Results, cell: Cell) -> str:
    ratios = results.times_before(cell) if cell.contender == SUBJECT else []
    return f"{figure(median(ratios))} ({_range(ratios)})" if ratios else "-"


def _refusals(results: Results) -> str:
    """Give the reason for each row of dashes."""
    cells = [cell for cell in results.cells() if cell.refused]
    return "".join(f"- {cell.label} refuses {cell.workload}: {cell.refused}.\n" for cell in cells)


def _range(values: list[float]) -> str:
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

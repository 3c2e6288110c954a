"""The results as pictures, one file each, for the README and for bench/README.md."""

from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes

from bench.contenders import BASELINE, BEFORE, LIMIT, SUBJECT
from bench.report.results import Cell, Results

_COLOURS = {
    SUBJECT: "#c1272d",
    BEFORE: "#e8a0a3",
    BASELINE: "#0071bc",
    "torch_fs": "#5aa9e6",
    LIMIT: "#404040",
}
_PEERS = ["#2e8b57", "#8e6bbf", "#d98b2b", "#b5a642", "#c71585", "#20808d"]


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw every picture into `folder` and return the paths; failed runs are left out."""
    done = Results([run for run in results.runs if run.get("ms_per_batch")])
    if not done.runs:
        return []
    pictures = {
        "cost_by_size.png": _cost_by_size,
        "workloads.png": _bars("ms_per_batch", "ms per batch"),
        "trainer_cpu.png": _bars("trainer_cpu_ms", "trainer CPU, ms per batch", without=LIMIT),
    }
    return [_save(folder / name, paint, done) for name, paint in pictures.items()]


def _save(path: Path, paint: Callable[[Axes, Results], None], results: Results) -> Path:
    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    paint(axes, results)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis="y", which="major", alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def _cost_by_size(axes: Axes, results: Results) -> None:
    """A batch's time against its bytes: a column of dots per workload."""
    for contender in results.contenders():
        cells = [cell for cell in results.cells() if cell.contender == contender]
        points = sorted(
            (_middle(cell, "batch_mb"), _middle(cell, "ms_per_batch")) for cell in cells
        )
        style = ":" if contender == LIMIT else "-"
        colour = _colour(contender, results)
        axes.plot(*zip(*points, strict=True), f"o{style}", color=colour, lw=1, label=cells[0].label)
    axes.set(xscale="log", yscale="log", xlabel="MB per batch", ylabel="ms per batch")
    _name_columns(axes, results)


def _name_columns(axes: Axes, results: Results) -> None:
    """Write each workload's name beside its column, every other one higher."""
    sizes = {
        max(_middle(cell, "batch_mb") for cell in results.cells_of(workload)): workload
        for workload in results.workloads()
    }
    for turn, (size_mb, workload) in enumerate(sorted(sizes.items())):
        axes.axvline(size_mb, color="#cccccc", lw=0.5, zorder=0)
        place = {"xy": (size_mb, 0), "xycoords": ("data", "axes fraction")}
        near = {"xytext": (-1, 4 + turn % 2 * 50), "textcoords": "offset points", "ha": "right"}
        axes.annotate(workload, **place, **near, rotation=90, fontsize=8, color="#606060")


def _bars(name: str, title: str, without: str = "") -> Callable[[Axes, Results], None]:
    """Bars in groups, a group per workload and a bar per contender, on a log axis."""

    def paint(axes: Axes, results: Results) -> None:
        workloads = results.workloads()
        shown = [each for each in results.contenders() if each != without]
        width = 0.8 / len(shown)
        for place, contender in enumerate(shown):
            cells = [results.cell(workload, contender) for workload in workloads]
            at = [group + (place + 0.5) * width - 0.4 for group in range(len(workloads))]
            heights = [_middle(cell, name) if cell else 0 for cell in cells]
            colour = _colour(contender, results)
            axes.bar(at, heights, width, color=colour, label=_label(cells))
        axes.set(yscale="log", ylabel=title)
        axes.set_xticks(range(len(workloads)), workloads)

    return paint


def _colour(contender: str, results: Results) -> str:
    peers = [name for name in results.contenders() if name not in _COLOURS]
    palette = _COLOURS | dict(zip(peers, cycle(_PEERS), strict=False))
    return palette[contender]


def _label(cells: list[Cell | None]) -> str:
    return next(cell.label for cell in cells if cell)


def _middle(cell: Cell, name: str) -> float:
    return cell.middle(name) or 0.0

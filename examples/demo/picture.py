"""The demo's picture: where the time of each step went, and what moving a large batch cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase

from examples.demo.training import Training
from shmloader.cli.run.epochs import Took

CUT_AT_MEDIANS = 5  # a few long steps must not flatten all others
MILLI = 1e3


def draw(
    trainings: Sequence[Training],
    passes: Mapping[str, Sequence[Took]],
    moved: str,
    setting: str,
    path: Path,
) -> None:
    """
    Write the picture as PNG.

    Args:
        trainings: Both trainings, torch's first: a panel each, with the same axes.
        passes: Of the large batches, by loader, in the same order: a bar each.
        moved: What a large batch is.
        setting: What else to know about the run: workers, versions.
        path: The file to write.
    """
    figure = Figure(figsize=(12.5, 6.4), layout="constrained")
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(3, 1))[0]
    draw_trainings(left, trainings, setting)
    draw_passes(right, passes, moved)
    figure.savefig(path, format="png", dpi=150)


def draw_trainings(figure: FigureBase, trainings: Sequence[Training], setting: str) -> None:
    """Draw the training panels, one above the other, and what their colours mean."""
    figure.suptitle("Training on photographs: where each step's time went")
    panels = figure.subplots(len(trainings), squeeze=False, sharex=True, sharey=True)[:, 0]
    for axes, training in zip(panels, trainings, strict=True):
        draw_steps(axes, training)
    times_ms = [(step.wait_s + step.train_s) * MILLI for each in trainings for step in each.steps]
    panels[0].set_ylim(0, min(max(times_ms) * 1.04, CUT_AT_MEDIANS * median(times_ms)))
    panels[-1].set_xlabel(f"step; lines part the epochs ({setting})")
    panels[0].legend(loc="upper right")


def draw_steps(axes: Axes, training: Training) -> None:
    """Draw one training: a column for each step, training stacked on waiting."""
    edges = list(range(len(training.steps) + 1))
    waits_ms = [step.wait_s * MILLI for step in training.steps]
    ends_ms = [(step.wait_s + step.train_s) * MILLI for step in training.steps]
    axes.stairs(ends_ms, edges, baseline=waits_ms, fill=True, color="0.75", label="training")
    axes.stairs(waits_ms, edges, fill=True, color="tab:red", label="waiting for data")
    for end in accumulate(map(len, training.epochs)):
        axes.axvline(end, color="0.5", linewidth=0.6, linestyle=":")
    axes.set_title(
        f"{training.name}: {median(training.epoch_times_s):.2f} s per epoch, "
        f"{training.waiting_share:.0%} of the time waiting"
    )
    axes.set_ylabel("ms per step")


def draw_passes(figure: FigureBase, passes: Mapping[str, Sequence[Took]], moved: str) -> None:
    """Draw what a large batch costs: its time above, the trainer's CPU below."""
    figure.suptitle(f"Moving {moved}")
    above, below = figure.subplots(2, 1, squeeze=False)[:, 0]
    times_ms = [[took.batch_s * MILLI for took in each] for each in passes.values()]
    cpus_ms = [[took.batch_cpu_s * MILLI for took in each] for each in passes.values()]
    draw_bars(above, "ms per batch", [*passes], times_ms)
    draw_bars(below, "trainer CPU per batch, ms", [*passes], cpus_ms)
    below.set_xlabel("bar: median of the passes; dots: each")


def draw_bars(
    axes: Axes, title: str, names: Sequence[str], values: Sequence[Sequence[float]]
) -> None:
    """Draw a bar up to the median of each contender's passes, and a dot for each pass."""
    bars = axes.bar(names, [median(each) for each in values], color=("0.6", "tab:blue"))
    axes.bar_label(bars, fmt="%.2f")
    for name, rounds in zip(names, values, strict=True):
        axes.plot([name] * len(rounds), rounds, "k.", markersize=3)
    axes.set_title(title)

"""The demo's picture: where the time of each step went, and what moving a large batch cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from pathlib import Path
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase
from matplotlib.layout_engine import ConstrainedLayoutEngine

from examples.demo.training import Step, Training
from shmloader.cli.comparison import Took

WAITING = "#c8553d"
TRAINING = "#b9c7d4"
CONTENDER = ("#8d99a6", "#1d6a72")
INK = "#2b2f33"
FAINT = "#8a9199"
CUT_AT_MEDIANS = 5
MILLI = 1e3
EPOCH_LABELS = 20  # at most so many numbers fit under the panels


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
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.10, wspace=0.03)
    figure = Figure(figsize=(12.5, 6.4), layout=layout, facecolor="white")
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(3, 1))[0]
    draw_trainings(left, trainings, setting)
    draw_passes(right, passes, moved)
    figure.savefig(path, format="png", dpi=150)


def draw_trainings(figure: FigureBase, trainings: Sequence[Training], setting: str) -> None:
    """Draw the training panels, one above the other, and what their colours mean."""
    head(figure, "Training on photographs: where each step's time went")
    panels = list(figure.subplots(len(trainings), squeeze=False, sharex=True, sharey=True)[:, 0])
    for axes, training in zip(panels, trainings, strict=True):
        draw_steps(axes, training)
    cut_outliers(panels, trainings)
    panels[0].set_xlim(0, len(trainings[0].steps))
    epoch_steps = len(trainings[0].epochs[0])
    panels[-1].set_xlabel(f"epoch, of {epoch_steps} steps ({setting})", color=INK)
    panels[0].legend(
        loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False, labelcolor=INK
    )


def head(figure: FigureBase, text: str) -> None:
    """Write the heading of one half of the picture."""
    figure.suptitle(text, x=0.01, ha="left", color=INK, fontsize=13, fontweight="bold")


def draw_steps(axes: Axes, training: Training) -> None:
    """Draw one training: a column for each step, training stacked on waiting."""
    edges = list(range(len(training.steps) + 1))
    waits_ms = [step.wait_s * MILLI for step in training.steps]
    ends_ms = [spent_ms(step) for step in training.steps]
    axes.stairs(ends_ms, edges, baseline=waits_ms, fill=True, color=TRAINING, label="training")
    axes.stairs(waits_ms, edges, fill=True, color=WAITING, label="waiting for data")
    title = (
        f"{training.name}: {median(training.epoch_times_s):.2f} s per epoch, "
        f"{training.waiting_share:.0%} of the time waiting"
    )
    axes.set_title(title, loc="left", color=INK, fontsize=11)
    axes.set_ylabel("ms per step", color=INK)
    tidy(axes)
    mark_epochs(axes, training)


def mark_epochs(axes: Axes, training: Training) -> None:
    """Draw a line where an epoch begins, and put its number under its middle."""
    ends = list(accumulate(len(steps) for steps in training.epochs))
    starts = [0, *ends[:-1]]
    for start in starts[1:]:
        axes.axvline(start, color=FAINT, linewidth=0.6, linestyle=(0, (2, 2)))
    middles = [(start + end) / 2 for start, end in zip(starts, ends, strict=True)]
    numbers = range(1, len(ends) + 1)
    every = -(-len(ends) // EPOCH_LABELS)
    axes.set_xticks(middles[::every], [str(number) for number in numbers[::every]])
    axes.tick_params(axis="x", length=0)


def cut_outliers(panels: Sequence[Axes], trainings: Sequence[Training]) -> None:
    """Keep a few long steps from flattening all others: cut them, and write what they took."""
    times_ms = [[spent_ms(step) for step in training.steps] for training in trainings]
    every_ms = list(chain.from_iterable(times_ms))
    limit_ms = min(max(every_ms) * 1.04, CUT_AT_MEDIANS * median(every_ms))
    panels[0].set_ylim(0, limit_ms)
    for axes, panel_ms in zip(panels, times_ms, strict=True):
        for place, taken_ms in enumerate(panel_ms):
            if taken_ms > limit_ms:
                label_cut(axes, place, taken_ms)


def label_cut(axes: Axes, place: int, taken_ms: float) -> None:
    """Write the time of a cut step beside its top."""
    axes.annotate(
        f"{taken_ms:.0f}",
        (place + 1, 1),
        xycoords=("data", "axes fraction"),
        xytext=(2, 0),
        textcoords="offset points",
        va="top",
        fontsize=8,
        color=FAINT,
    )


def spent_ms(step: Step) -> float:
    """Milliseconds from one step to the next."""
    return (step.wait_s + step.train_s) * MILLI


def draw_passes(figure: FigureBase, passes: Mapping[str, Sequence[Took]], moved: str) -> None:
    """Draw what a large batch costs: its time above, the trainer's CPU below."""
    head(figure, f"Moving {moved}")
    above, below = figure.subplots(2, 1, squeeze=False)[:, 0]
    times_ms = [[took.batch_s * MILLI for took in each] for each in passes.values()]
    cpus_ms = [[took.batch_cpu_s * MILLI for took in each] for each in passes.values()]
    draw_bars(above, "ms per batch", [*passes], times_ms)
    draw_bars(below, "trainer CPU per batch, ms", [*passes], cpus_ms)
    below.set_xlabel("bar: median of the passes; dots: each", color=INK, fontsize=9)


def draw_bars(
    axes: Axes, title: str, names: Sequence[str], values: Sequence[Sequence[float]]
) -> None:
    """Draw a bar up to the median of each contender's passes, and a dot for each pass."""
    for place, rounds in enumerate(values):
        axes.bar(place, median(rounds), width=0.55, color=CONTENDER[place])
        beside = [place + 0.36] * len(rounds)
        axes.plot(beside, rounds, "o", color=CONTENDER[place], markersize=3, alpha=0.7)
        axes.annotate(
            f"{median(rounds):.2f}",
            (place, median(rounds)),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            color=INK,
        )
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.5, len(names) - 0.4)
    axes.set_ylim(0, max(map(max, values)) * 1.12)
    axes.set_title(title, loc="left", color=INK, fontsize=11)
    tidy(axes)


def tidy(axes: Axes) -> None:
    """Leave only the lines that carry something."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(labelcolor=INK, labelsize=9, color=FAINT)

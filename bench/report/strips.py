"""Pictures of strips, side by side or one below the other, drawn into a file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes


@contextmanager
def strips(
    path: Path, rows: int, columns: int, size: tuple[float, float], x: str, y: str, alike: bool
) -> Iterator[list[Axes]]:
    """
    Give a block the strips to draw on, and write them when it ends.

    Args:
        size: Of the picture, in inches.
        x, y: What the axes mean.
        alike: All have the same scale.
    """
    figure, axes = pyplot.subplots(
        rows, columns, figsize=size, sharex=columns == 1, sharey=alike, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    yield list(axes.flat)
    for each in axes.flat:
        each.spines[["top", "right"]].set_visible(False)
        each.grid(axis="y", alpha=0.3)
    for each in axes[-1]:
        each.set_xlabel(x, fontsize=10)
    figure.supylabel(y, fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    print(f"wrote {path}")

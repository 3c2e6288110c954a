"""Waits and fetches per batch as a picture, for people who have no Perfetto at hand."""

import os
from typing import TYPE_CHECKING, Any

from shmloader.stats.layout import Layout, Records
from shmloader.stats.timeline import Timeline, timeline_over

if TYPE_CHECKING:  # an extra, which need not be there before a picture is drawn
    from matplotlib.figure import Figure

_INCHES = (10.0, 6.0)
_BAR_MAX = 400  # batches of which each is a bar of its own


def draw(path: str | os.PathLike[str], records: Records, layout: Layout, title: str = "") -> None:
    """Draw how long each of the last epoch's batches was waited for, used, fetched and collated."""
    if not len(records):
        raise ValueError("the loader has no batches to draw: iterate it first")
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise ImportError(
            "matplotlib, which draws the picture, is not installed: pip install 'shmloader[cli]'",
            name="matplotlib",
        ) from None
    epoch = int(records["epoch"][-1])
    records = records[records["epoch"] == epoch][-_BAR_MAX:]
    times, batches = timeline_over(records, layout, epoch), records["ticket"].astype(float)
    # Not pyplot: the user's own figures and backend stay as they are.
    figure = Figure(figsize=_INCHES, layout="constrained")
    _fill(figure, batches, times)
    figure.suptitle(title or f"epoch {epoch}")
    figure.savefig(path)


def _fill(figure: "Figure", batches: Any, times: Timeline) -> None:
    above, below = figure.subplots(2, 1, sharex=True)
    above.bar(batches, times.next, width=1.0, color="tab:red", label="waiting in next()")
    # The step of the last batch is not known.
    above.plot(batches[:-1], times.step[:-1], color="tab:blue", linewidth=1.0, label="step")
    above.set_ylabel("seconds in the training loop")
    below.bar(batches, times.fetching, width=1.0, color="tab:green", label="fetching")
    bottom = {"bottom": times.fetching, "color": "tab:orange", "label": "collating"}
    below.bar(batches, times.collating, width=1.0, **bottom)
    below.plot(batches, times.longest, "k.", markersize=3.0, label="longest sample")
    below.set_ylabel("seconds in its worker")
    below.set_xlabel("batch")
    for axes in (above, below):
        axes.legend(loc="upper right")

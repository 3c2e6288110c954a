"""Waits and fetches per batch as a picture, for people who have no Perfetto at hand."""

import os
from typing import TYPE_CHECKING, Any

import numpy

from shmloader.stats.layout import Records

if TYPE_CHECKING:  # an extra, which need not be there before a picture is drawn
    from matplotlib.axes import Axes

_INCHES = (10.0, 6.0)
_BAR_MAX = 400  # batches of which each is a bar of its own


def draw(path: str | os.PathLike[str], records: Records, title: str = "") -> None:
    """
    Draw how long each of the last batches of an epoch was waited for, used, fetched and collated.

    Args:
        path: The file; its suffix is its format, as `matplotlib` knows it.
        records: Of a log, oldest first; the last epoch in it is drawn.
    """
    if not len(records):
        raise ValueError("the loader has no batches to draw: iterate it first")
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise ImportError(
            "matplotlib, which draws the picture, is not installed: pip install 'shmloader[cli]'",
            name="matplotlib",
        ) from None
    records = records[records["epoch"] == records["epoch"][-1]][-_BAR_MAX:]
    # Not pyplot: the user's own figures and backend stay as they are.
    figure = Figure(figsize=_INCHES, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    _draw_trainer(above, records)
    _draw_workers(below, records)
    figure.suptitle(title or f"epoch {int(records['epoch'][-1])}")
    figure.savefig(path)


def _draw_trainer(axes: "Axes", records: Records) -> None:
    batches = records["ticket"].astype(float)
    waits_s = _seconds(records, "asked_ns", "returned_ns")
    steps_s = numpy.full(len(records), numpy.nan)
    # The step of a batch ends when the next one is asked for.
    steps_s[:-1] = _between(records["returned_ns"][:-1], records["asked_ns"][1:])
    axes.bar(batches, waits_s, width=1.0, color="tab:red", label="waiting in next()")
    axes.plot(batches, steps_s, color="tab:blue", linewidth=1.0, label="step")
    axes.set_ylabel("seconds in the training loop")
    axes.legend(loc="upper right")


def _draw_workers(axes: "Axes", records: Records) -> None:
    batches = records["ticket"].astype(float)
    fetching_s = _seconds(records, "taken_ns", "fetched_ns")
    collating_s = _seconds(records, "fetched_ns", "written_ns")
    longest_s = records["longest_ns"].astype(float) / 1e9
    axes.bar(batches, fetching_s, width=1.0, color="tab:green", label="fetching")
    bottom: Any = fetching_s
    axes.bar(batches, collating_s, bottom=bottom, width=1.0, color="tab:orange", label="collating")
    axes.plot(batches, longest_s, "k.", markersize=3.0, label="longest sample")
    axes.set_ylabel("seconds in its worker")
    axes.set_xlabel("batch")
    axes.legend(loc="upper right")


def _seconds(records: Records, begin: str, end: str) -> Any:
    return _between(records[begin], records[end])


def _between(begin_ns: Any, end_ns: Any) -> Any:
    # Unsigned numbers: a difference below 0 would be huge.
    return numpy.maximum(0.0, end_ns.astype(float) - begin_ns.astype(float)) / 1e9

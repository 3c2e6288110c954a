"""The log's records of one epoch as columns of seconds: when each batch made its moves."""

from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from shmloader.stats.layout import Layout, Records

Column = NDArray[numpy.float64]
Numbers = NDArray[numpy.int64]


@dataclass(frozen=True)
class Timeline:
    """
    Batches of one epoch in the order in which they were returned, a number each in every column.

    Durations and times are seconds; times count from the moment the first of them was asked for.
    """

    worker: Numbers  # which one made it
    fetching: Column
    collating: Column  # and writing
    blocked: Column  # waiting for pages
    next: Column  # in next() for it
    parked: Column  # of that, waiting for it
    step: Column  # from its return to the next call of next(); the last one's is 0
    held: Column  # from its return to its release; NaN while it is held
    asked: Column
    returned: Column
    spilled: NDArray[numpy.bool_]  # copied out of its slot
    longest: Column  # sample, to a few milliseconds; NaN if samples were not seen one by one
    longest_index: Numbers  # that sample's index of the dataset; -1: not known
    bytes: Numbers  # of its payload

    def __len__(self) -> int:
        return len(self.worker)

    @property
    def making(self) -> Column:
        """Seconds that a worker was busy with each batch, waiting for pages not included."""
        return self.fetching + self.collating

    def after(self, count: int) -> "Timeline":
        """Leave out the first batches."""
        return Timeline(*(getattr(self, name)[count:] for name in self.__dataclass_fields__))


def timeline_over(records: Records, layout: Layout, epoch: int) -> Timeline:
    """Read the records of one epoch, out of whole ones that are in order."""
    found = records[records["epoch"] == epoch]
    is_seen = found["longest_position"] != layout.no_position
    index = numpy.where(found["longest_index"] == layout.no_index, -1, found["longest_index"])
    begun = found["asked_ns"][0] if len(found) else numpy.uint64(0)
    held = _seconds(found["released_ns"], found["returned_ns"])
    collating = _seconds(found["written_ns"], found["fetched_ns"])
    blocked_later = _seconds(found["blocked_ns"], found["blocked_fetching_ns"])
    return Timeline(
        worker=found["worker"].astype(numpy.int64),
        fetching=_seconds(found["fetched_ns"], found["taken_ns"])
        - found["blocked_fetching_ns"] / 1e9,
        collating=collating - blocked_later,
        blocked=found["blocked_ns"] / 1e9,
        next=_seconds(found["returned_ns"], found["asked_ns"]),
        parked=found["parked_ns"] / 1e9,
        step=_steps(found),
        held=numpy.where(found["released_ns"] > 0, held, numpy.nan),
        asked=_seconds(found["asked_ns"], begun),
        returned=_seconds(found["returned_ns"], begun),
        spilled=found["spill"] > 0,
        longest=numpy.where(is_seen, found["longest_ns"] / 1e9, numpy.nan),
        longest_index=index.astype(numpy.int64),
        bytes=found["bytes"].astype(numpy.int64),
    )


def _steps(found: Records) -> Column:
    steps = numpy.zeros(len(found))  # what comes after the last batch is not known
    steps[:-1] = _seconds(found["asked_ns"][1:], found["returned_ns"][:-1])
    return steps


def _seconds(later: Any, earlier: Any) -> Column:
    # As signed numbers: a forged or missing time may be the earlier one.
    seconds: Column = (later.astype(numpy.int64) - numpy.asarray(earlier).astype(numpy.int64)) / 1e9
    return seconds

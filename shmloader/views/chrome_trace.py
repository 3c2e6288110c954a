"""
The last batches of loaders as a trace that Perfetto and chrome://tracing open.

The format is Chrome's trace events: complete slices ("X") and names ("M"), with times in
microseconds of the monotonic clock. Each iterator is a process, its trainer and each worker a
track. Where a worker was blocked is not in the log, only for how long: such a slice stands at the
end of what it was a part of.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shmloader.stats.layout import Layout, Records

# Perfetto tells tracks apart by their numbers alone, so those of two iterators differ.
_TRACKS_EACH = 1 << 17

_Event = dict[str, Any]
_Row = dict[str, Any]


class NothingToTrace(RuntimeError):
    """No batch is in the logs."""


@dataclass(frozen=True)
class Traced:
    """What is known of one iterator's batches."""

    loader: int  # its number
    label: str
    records: Records  # the log's, oldest first


def write_trace(path: str | os.PathLike[str], traced: Sequence[Traced], layout: Layout) -> int:
    """Write the trace of iterators to a file. Returns its batches."""
    batches = sum(len(each.records) for each in traced)
    if not batches:
        raise NothingToTrace(
            "the log contains no batch: iterate the loader with workers first, and call trace() "
            "before close()"
        )
    trace = {"traceEvents": list(events_of(traced, layout)), "displayTimeUnit": "ms"}
    Path(path).write_text(json.dumps(trace))
    return batches


def events_of(traced: Iterable[Traced], layout: Layout) -> Iterator[_Event]:
    """Yield the events of a trace."""
    for number, each in enumerate(traced, start=1):
        names = each.records.dtype.names or ()
        rows = [dict(zip(names, row, strict=True)) for row in each.records.tolist()]
        base = number * _TRACKS_EACH
        yield from _names(base, each, sorted({row["worker"] for row in rows}))
        yield from _of_trainer(base, rows)
        for row in rows:
            yield from _of_worker(base, row, layout)


def _names(base: int, traced: Traced, workers: list[int]) -> Iterator[_Event]:
    yield _name(base, base, "process_name", f"loader {traced.loader} {traced.label}".rstrip())
    yield _name(base, base, "thread_name", "trainer")
    for worker in workers:
        yield _name(base, base + 1 + worker, "thread_name", f"worker {worker}")


def _name(pid: int, tid: int, kind: str, name: str) -> _Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": {"name": name}}


def _slice(base: int, track: int, name: str, begin_ns: int, end_ns: int, args: _Row) -> _Event:
    return {
        "ph": "X",
        "pid": base,
        "tid": base + track,
        "name": name,
        "ts": begin_ns / 1000,
        "dur": (end_ns - begin_ns) / 1000,
        "args": args,
    }


def _of_trainer(base: int, rows: list[_Row]) -> Iterator[_Event]:
    """The calls of next() that returned a batch, and the steps between them."""
    before: _Row | None = None
    for row in rows:
        # A record that is missing, or the end of an epoch, is no step.
        if before and _follows(before, row) and before["returned_ns"] <= row["asked_ns"]:
            step = {"batch": before["ticket"], "epoch": before["epoch"]}
            yield _slice(base, 0, "step", before["returned_ns"], row["asked_ns"], step)
        if row["asked_ns"] <= row["returned_ns"]:
            waiting = {
                "batch": row["ticket"],
                "epoch": row["epoch"],
                "worker": row["worker"],
                "parked_ms": row["parked_ns"] / 1e6,
                "spilled": row["spill"] != 0,
            }
            yield _slice(base, 0, "next()", row["asked_ns"], row["returned_ns"], waiting)
        before = row


def _follows(before: _Row, row: _Row) -> bool:
    return (before["epoch"], before["sequence"] + 2) == (row["epoch"], row["sequence"])


def _of_worker(base: int, row: _Row, layout: Layout) -> Iterator[_Event]:
    """What a worker did for one batch."""
    taken_ns, fetched_ns, written_ns = row["taken_ns"], row["fetched_ns"], row["written_ns"]
    if not 0 < taken_ns <= fetched_ns <= written_ns:  # an answer that was no batch
        return
    track = 1 + row["worker"]
    batch = {"batch": row["ticket"], "epoch": row["epoch"], "slot": row["slot"]}
    fetching = {**batch, "samples": row["samples"] or None, **_longest(row, layout)}
    yield _slice(base, track, "fetching", taken_ns, fetched_ns, fetching)
    yield from _blocked(base, track, taken_ns, fetched_ns, row["blocked_fetching_ns"])
    collating = {**batch, "bytes": row["bytes"]}
    yield _slice(base, track, "collating", fetched_ns, written_ns, collating)
    rest_ns = row["blocked_ns"] - row["blocked_fetching_ns"]
    yield from _blocked(base, track, fetched_ns, written_ns, rest_ns)


def _longest(row: _Row, layout: Layout) -> _Row:
    if row["longest_position"] == layout.no_position:
        return {}
    is_known = row["longest_index"] != layout.no_index
    return {
        "longest_sample_ms": row["longest_ns"] / 1e6,
        "longest_position": row["longest_position"],
        "longest_index": row["longest_index"] if is_known else None,
    }


def _blocked(
    base: int, track: int, begin_ns: int, end_ns: int, blocked_ns: int
) -> Iterator[_Event]:
    if blocked_ns > 0:
        yield _slice(base, track, "blocked", max(begin_ns, end_ns - blocked_ns), end_ns, {})

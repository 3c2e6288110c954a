"""
Traces as they were written; that Perfetto reads them is asked of itself by trace_processor.py.

What it would draw wrongly, without an error, is refused in each: slices of a track that overlap
without being within each other, and a track's number in two processes.
"""

import json


class NotATrace(ValueError):
    """A file breaks a rule of the format; the text says which, and where."""


def events_in(path):
    """
    Read a trace.

    Raises:
        NotATrace: It would be drawn wrongly.
    """
    events = json.loads(path.read_text())["traceEvents"]
    processes = {}
    tracks = {}
    for event in events:
        if processes.setdefault(event["tid"], event["pid"]) != event["pid"]:
            raise NotATrace(f"track {event['tid']} is in two processes")
        if event["ph"] == "X":
            tracks.setdefault(event["tid"], []).append(event)
    for slices in tracks.values():
        _check_nesting(slices)
    return events


def _check_nesting(slices):
    """A slice ends before the next one of its track begins, or holds all of it."""
    ends = []
    for event in sorted(slices, key=lambda event: (event["ts"], -event["dur"])):
        begin, end = _nanoseconds(event["ts"]), _nanoseconds(event["ts"] + event["dur"])
        while ends and ends[-1] <= begin:
            ends.pop()
        if ends and end > ends[-1]:
            raise NotATrace(f"overlaps the slice before it: {event}")
        ends.append(end)


def _nanoseconds(microseconds):
    return round(1000 * microseconds)

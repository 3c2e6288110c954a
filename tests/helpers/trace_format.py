"""
The Trace Event Format, as strictly as a reader may take it.

Of the format's kinds of events ours has complete slices (X) and metadata (M). Where the format
leaves a choice, what Perfetto would drop or draw wrongly is refused: slices of a track that overlap
without being within each other, and a track's number in two processes.
"""

import json
import math

_ALWAYS = {"ph": str, "pid": int, "tid": int, "name": str, "args": dict}
_KEYS = {
    "X": {**_ALWAYS, "ts": float, "dur": float},
    "M": _ALWAYS,
}
_NAMES = {"process_name", "thread_name"}  # metadata that says what a track is called


class NotATrace(ValueError):
    """A file breaks a rule of the format; the text says which, and where."""


def events_in(path):
    """
    Read a trace.

    Raises:
        NotATrace: It is none.
    """
    written = json.loads(path.read_text(), parse_constant=_refuse_constant)
    if {"traceEvents", "displayTimeUnit"} != written.keys() or written["displayTimeUnit"] != "ms":
        raise NotATrace(f"an object of {sorted(written)}")
    events = written["traceEvents"]
    for event in events:
        _check_event(event)
    _check_names(events)
    _check_tracks(events)
    return events


def _refuse_constant(text):
    raise NotATrace(f"{text} is no JSON")


def _check_event(event):
    keys = _KEYS.get(event.get("ph"))
    if keys is None or keys.keys() != event.keys():
        raise NotATrace(f"keys that its kind does not have, or lacks: {event}")
    for name, kind in keys.items():
        if not isinstance(event[name], kind) or isinstance(event[name], bool):
            raise NotATrace(f"{name} is no {kind.__name__}: {event}")
    times = [event[name] for name in ("ts", "dur") if name in event]
    if not event["name"] or event["pid"] <= 0 or event["tid"] <= 0 or any(t < 0 for t in times):
        raise NotATrace(f"no name, or a number that is too small: {event}")


def _check_names(events):
    """Each process and each track is named once, and each that has slices is."""
    named = [
        (event["name"], event["pid"] if event["name"] == "process_name" else event["tid"])
        for event in events
        if event["ph"] == "M"
    ]
    used = {("process_name", event["pid"]) for event in events}
    used |= {("thread_name", event["tid"]) for event in events if event["ph"] == "X"}
    strange = [event for event in events if event["ph"] == "M" and not _is_a_name(event)]
    if strange or len({*named}) != len(named) or not used <= {*named}:
        raise NotATrace(f"tracks without a name or with two: {strange or sorted(named)}")


def _is_a_name(event):
    return (
        event["name"] in _NAMES
        and event["args"].keys() == {"name"}
        and isinstance(event["args"]["name"], str)
        and event["args"]["name"]
    )


def _check_tracks(events):
    processes = {}
    tracks = {}
    for event in events:
        if processes.setdefault(event["tid"], event["pid"]) != event["pid"]:
            raise NotATrace(f"track {event['tid']} is in two processes")
        if event["ph"] == "X":
            tracks.setdefault(event["tid"], []).append(event)
    for slices in tracks.values():
        _check_nesting(slices)


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
    if not math.isfinite(microseconds):
        raise NotATrace(f"{microseconds} is no time")
    return round(1000 * microseconds)

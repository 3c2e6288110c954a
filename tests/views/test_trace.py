"""Traces of what loaders did, of their logs alone."""

import json
import os
import re
import time

import pytest
import torch
import torch.utils.data

import shmloader
from shmloader import DataLoader
from shmloader.cli import main
from shmloader.views import chrome_trace
from tests.helpers.datasets import Computed
from tests.helpers.looks import LAYOUT, segment_after
from tests.helpers.trace_format import events_in


def slow(index):
    """A row, of which one takes long."""
    if index == 14:
        time.sleep(0.1)
    return torch.full((4,), index)


SLOW = Computed(24, slow)


def tracks_of(events):
    return {
        event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"
    }


def named(events, name):
    """List the slices of a name."""
    return [event for event in events if event["ph"] == "X" and event["name"] == name]


@pytest.mark.thorough
def test_a_loaders_trace(tmp_path):
    """Each batch has its slices, on the track of its worker and of the trainer."""
    path = tmp_path / "trace.json"
    with DataLoader(SLOW, num_workers=2, batch_size=4) as loader:
        for batch in loader:
            del batch
        loader.trace(path)
        number = loader._service.pool.number
    events = events_in(path)
    tracks = tracks_of(events)

    assert ["trainer", "worker 0", "worker 1"] == sorted(tracks)
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert [f"loader {number} Computed"] == names
    for name, count in (("next()", 6), ("step", 5), ("fetching", 6), ("collating", 6)):
        assert list(range(count)) == [event["args"]["batch"] for event in named(events, name)]
    assert {tracks["trainer"]} == {event["tid"] for event in named(events, "next()")}
    for event in named(events, "fetching"):
        assert tracks[f"worker {event['args']['batch'] % 2}"] == event["tid"]
    slow = named(events, "fetching")[14 // 4]
    assert (14, 2) == (slow["args"]["longest_index"], slow["args"]["longest_position"])
    assert [path] == list(tmp_path.iterdir())


@pytest.mark.thorough
def test_two_epochs_have_no_step_between_them(tmp_path):
    """What passes between two epochs is no step, and tickets that come again are told apart."""
    path = tmp_path / "trace.json"
    with DataLoader(SLOW, num_workers=1, batch_size=4, persistent_workers=True) as loader:
        list(loader)
        list(loader)
        loader.trace(path)
    events = events_in(path)

    assert 10 == len(named(events, "step"))
    assert [1] * 6 + [2] * 6 == [event["args"]["epoch"] for event in named(events, "next()")]


@pytest.mark.thorough
def test_a_trace_from_outside(tmp_path, capsys):
    """`shmloader trace` writes what the loader itself would write."""
    path, own = tmp_path / "outside.json", tmp_path / "own.json"
    with DataLoader(SLOW, num_workers=2, batch_size=4) as loader:
        batches = [batch for _, batch in zip(range(3), loader, strict=False)]
        loader.trace(own)
        status = main(["trace", str(os.getpid()), "-o", str(path)])
        del batches
    mine = [event["args"] for event in events_in(own) if event["ph"] == "X"]

    assert 0 == status
    assert "batches" in capsys.readouterr().out
    assert all(args in [event["args"] for event in events_in(path)] for args in mine)


def test_served_loaders_are_traced_together(tmp_path):
    """The loaders of torch's class that a framework holds come into one file."""
    path = tmp_path / "trace.json"
    shmloader.install()
    try:
        held = [torch.utils.data.DataLoader(range(8), 4, num_workers=1) for _ in range(2)]
        for loader in held:
            list(loader)
        shmloader.trace({"train": held[0], "test": held[1]}, path)
        shmloader.close(held)
    finally:
        shmloader.uninstall()
    processes = {event["pid"] for event in events_in(path)}

    assert 2 == len(processes)


@pytest.mark.parametrize("workers", [0, 1])
def test_nothing_to_trace(tmp_path, workers):
    """A loader without batches from workers says so, and writes no file."""
    with (
        DataLoader(range(8), num_workers=workers) as loader,
        pytest.raises(RuntimeError, match="the log contains no batch"),
    ):
        loader.trace(tmp_path / "trace.json")

    assert [] == list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written(tmp_path, capsys):
    """An error of the file system is the user's own, and leaves nothing."""
    with DataLoader(range(8), 4, num_workers=1) as loader:
        list(loader)
        with pytest.raises(FileNotFoundError, match=re.escape("nowhere/trace.json'") + "$"):
            loader.trace(tmp_path / "nowhere" / "trace.json")
        (tmp_path / "folder").mkdir()
        with pytest.raises(IsADirectoryError):
            loader.trace(tmp_path / "folder")
        status = main(["trace", str(os.getpid()), "-o", str(tmp_path / "folder")])

    assert 1 == status
    assert re.search("no trace of process .* Is a directory: '.*folder'$", capsys.readouterr().err)
    assert [tmp_path / "folder"] == list(tmp_path.iterdir())


@pytest.mark.thorough
def test_a_trace_replaces_the_file_that_a_link_names(tmp_path):
    """A link stays a link, and a pipe is written to."""
    path, link = tmp_path / "trace.json", tmp_path / "link.json"
    link.symlink_to(path.name)
    with DataLoader(range(8), 4, num_workers=1) as loader:
        list(loader)
        loader.trace(link)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    traced = [chrome_trace.Traced(1, "", records_after(2))]
    chrome_trace.write_trace(f"/proc/self/fd/{writer}", traced, LAYOUT)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert json.loads(pipe.read())["traceEvents"]

    assert link.is_symlink()
    assert events_in(path)


def records_after(batches):
    """Returns the records of a loader's first batches."""
    data, _ = segment_after(batches)
    plate = LAYOUT.values("nameplate", data)
    return LAYOUT.records(data[plate["log_offset"] :])


def test_blocked_workers_have_a_slice():
    """Time that a worker waited for pages stands at the end of what it was a part of."""
    records = records_after(2).copy()
    for name, value in (("taken", 1000), ("fetched", 5000), ("written", 9000)):
        records[f"{name}_ns"] = value
    records["blocked_ns"], records["blocked_fetching_ns"] = 3000, 1000
    events = list(chrome_trace.events_of([chrome_trace.Traced(1, "", records[:1])], LAYOUT))

    assert [(4.0, 1.0), (7.0, 2.0)] == [(e["ts"], e["dur"]) for e in named(events, "blocked")]

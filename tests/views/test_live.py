"""What a stranger reads of a segment is true, or it is said that it cannot be read."""

import json
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmloader import DataLoader
from shmloader.cli.attach.process_facts import process
from shmloader.cli.attach.segments import look_into
from shmloader.cli.attach.trainers import LiveTrainer
from shmloader.cli.top.as_json import as_record
from shmloader.cli.top.text import lines_of
from shmloader.stats.layout import in_order, read_log, read_struct
from shmloader.views import live
from shmloader.views.chrome_trace import Traced, events_of
from tests.helpers.datasets import Computed
from tests.helpers.looks import LAYOUT, reader_in, reader_of, segment_after
from tests.helpers.programs import wait_until

NOW_NS = time.monotonic_ns()


def shown(data, total_bytes, now_ns=NOW_NS):
    """Read bytes as `top` and `trace` do, and make all that they show of them."""
    plate = live.read_plate(reader_in(data), total_bytes, LAYOUT)
    loader = live.read_loader(reader_in(data), plate, LAYOUT, now_ns)
    trainer = LiveTrainer(process(os.getpid()), False, (loader,))
    texts = [line.text for line in lines_of([trainer])]
    record = json.loads(json.dumps(as_record([trainer]), allow_nan=False))
    events = list(events_of([Traced(1, "", loader.records)], LAYOUT))
    json.dumps(events, allow_nan=False)
    return loader, texts, record, events


def test_a_segment_is_read():
    """All that a segment says of its loader is read."""
    loader, texts, record, _ = shown(*segment_after(20))

    assert (1, 20, 100, "stepping") == (loader.epoch, loader.batch, loader.length, loader.trainer)
    assert "range" == loader.label
    assert list(range(20)) == loader.records["ticket"].tolist()
    assert 2 == len(loader.workers)
    assert any("epoch 1, batch 20 of 100" in text for text in texts)
    assert 20 == record["trainers"][0]["loaders"][0]["batch"]


def test_a_worker_that_has_not_started_has_no_age():
    """It would be that of the machine's clock."""
    data, total_bytes = segment_after(20)
    blank = bytearray(data)
    at = shown(data, total_bytes)[0].plate.worker_offset + LAYOUT.offset("worker", "view")
    length = LAYOUT.dtype("worker_view").itemsize
    blank[at : at + length] = bytes(length)
    worker, _ = shown(bytes(blank), total_bytes)[0].workers

    assert ("absent", 0.0) == (worker.state, worker.since_s)


def test_a_worker_in_its_init_function_has_a_pid(tmp_path):
    """So a user can look where it is, although it is not asked yet."""

    def wait(worker):
        assert wait_until(lambda: (tmp_path / "gate").exists())

    with DataLoader(range(4), num_workers=1, worker_init_fn=wait) as loader:
        batches = iter(loader)
        (pid,) = (each.pid for each in batches._workers)

        def seen():
            (shown,) = look_into(process(os.getpid()))[0]
            return [(each.pid, each.state) for each in shown.workers]

        assert wait_until(lambda: [(pid, "absent")] == seen())
        (tmp_path / "gate").touch()
        assert 4 == len(list(batches))


@pytest.mark.thorough
@given(
    places=st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=64)), max_size=20),
    state=st.integers(0, 255),
)
def test_overwritten_bytes_are_no_crash(places, state):
    """Whatever stands in the views and the log, it is shown, or it is said that it cannot be."""
    data, total_bytes = segment_after(20)
    damaged = bytearray(data)
    # Half of them among the views, which are few beside the log.
    for number, (where, piece) in enumerate(places):
        end = 4096 if number % 2 else len(data)
        at = int(where * (end - len(piece)))
        damaged[at : at + len(piece)] = piece
    damaged[LAYOUT.offset("control", "trainer") + 8] = state
    try:
        loader, *_ = shown(bytes(damaged), total_bytes)
    except (live.NoSegment, live.NotReadable):
        return
    assert loader.trainer in (*live.TRAINER_STATES, live.BUSY)
    assert {worker.state for worker in loader.workers} <= {*live.WORKER_STATES, live.BUSY}


@given(data=st.binary(max_size=4096), cut=st.integers(0, 8192))
def test_any_file_is_no_crash(data, cut):
    """Files that are no segments, and segments that are cut off, are told apart."""
    with pytest.raises(live.NoSegment):
        shown(data, len(data))
    whole, total_bytes = segment_after(20)
    try:
        shown(whole[:cut], total_bytes)
    except (live.NoSegment, live.NotReadable):
        assert cut < LAYOUT.dtype("nameplate").itemsize


def test_another_version_says_so():
    """A segment of another layout is named as such, and not read."""
    data, total_bytes = segment_after(20)
    at = LAYOUT.dtype("nameplate").fields["layout"][1]
    damaged = data[:at] + (99).to_bytes(4, "little") + data[at + 4 :]

    with pytest.raises(live.NotReadable, match="another version of shmloader, with another layout"):
        live.read_plate(reader_in(damaged), total_bytes, LAYOUT)


def test_a_file_of_another_length_is_damaged():
    """A segment that does not say the length of its file is not read."""
    data, total_bytes = segment_after(20)

    with pytest.raises(live.NotReadable, match="damaged"):
        live.read_plate(reader_in(data), total_bytes - 1, LAYOUT)


class Changing:
    """Bytes that are other ones at each reading, for so many readings."""

    def __init__(self, size, sequence, readings):
        self._size = size
        self._sequence = sequence
        self._left = readings

    def read(self, size, offset):
        if self._left:
            self._left -= 1
            self._sequence += 2
        return self._sequence.to_bytes(8, "little") + bytes(size - 8)


@pytest.mark.parametrize(
    ("sequence", "readings", "is_read"), [(2, 0, True), (2, 30, True), (2, 10**6, False), (3, 0, 0)]
)
def test_a_view_that_changes_is_read_again(sequence, readings, is_read):
    """A view that is being written is read again, and given up after some readings."""
    source = Changing(64, sequence, readings)
    found = read_struct(source.read, LAYOUT, "worker_view", 0)

    assert bool(is_read) == (found is not None)


def test_a_busy_view_is_called_so():
    """A worker and a trainer whose views stay odd are busy, and the rest is shown."""
    data, total_bytes = segment_after(20)
    damaged = bytearray(data)
    plate = live.read_plate(reader_in(data), total_bytes, LAYOUT)
    for at in (
        LAYOUT.offset("control", "trainer"),
        plate.worker_offset + LAYOUT.offset("worker", "view"),
    ):
        damaged[at] |= 1
    loader, texts, _, _ = shown(bytes(damaged), total_bytes)

    assert (live.BUSY, live.BUSY) == (loader.trainer, loader.workers[0].state)
    assert live.BUSY != loader.workers[1].state
    assert 20 == len(loader.records)
    assert any("faster than it can be read" in text for text in texts)


def test_torn_records_are_left_out():
    """Of a log, only records are taken that are equal in both copies and whole."""
    data, total_bytes = segment_after(20)
    plate = live.read_plate(reader_in(data), total_bytes, LAYOUT)
    size = LAYOUT.dtype("log_record").itemsize
    log = data[plate.log_offset :]
    other = bytearray(log)
    other[3 * size + 16] ^= 0xFF
    other[5 * size] |= 1
    copies = [log, bytes(other)]
    records = read_log(lambda *_: copies.pop(), LAYOUT, 0, plate.log_records)

    assert [n for n in range(20) if n not in (3, 5)] == records["ticket"].tolist()
    assert 0 == len(in_order(records[:0]))


def unhurried(index):
    """A number that takes as long as a system call."""
    time.sleep(0.0002)
    return index


@pytest.mark.thorough
def test_what_is_read_of_a_running_loader_fits_together():
    """A worker's ticket, position and index, read while it runs, are of one moment."""
    with DataLoader(Computed(40_000, unhurried), 4, num_workers=2) as loader:
        iterator = iter(loader)
        descriptor = iterator._running.segment.descriptor
        read = reader_of(descriptor)
        plate = live.read_plate(read, os.fstat(descriptor).st_size, LAYOUT)
        seen = 0
        for _ in iterator:
            looked = live.read_loader(read, plate, LAYOUT, time.monotonic_ns())
            fetching = [each for each in looked.workers if each.position is not None]
            assert all(4 * each.ticket + each.position == each.index for each in fetching)
            assert looked.records["ticket"].tolist() == list(range(looked.batch))[-2048:]
            seen += len(fetching)
            if looked.batch >= 300 and seen > 5:
                break
        assert seen > 5


def record_of(**times):
    """Make a log of one record."""
    records = in_order(read_log(reader_in(bytes(192)), LAYOUT, 0, 1))
    records = records.copy()
    records.resize(1)
    for name, value in times.items():
        records[name] = value
    return records


def test_rates_are_those_of_the_last_seconds():
    """Rates and the share of waiting are counted over the log, and over a wait that goes on."""
    second = 10**9
    records = record_of(
        epoch=1, asked_ns=96 * second, returned_ns=97 * second, bytes=600, samples=4
    )
    records["taken_ns"], records["fetched_ns"] = 90 * second, 94 * second
    view = {"epoch": 1, "begun_ns": 95 * second, "state": 1, "since_ns": 97 * second}
    stepping = live.pace_of(records, view, 100 * second)
    waiting = live.pace_of(records, {**view, "state": 2, "since_ns": 98 * second}, 100 * second)
    later = {**view, "epoch": 2, "begun_ns": 399 * second, "since_ns": 399 * second}
    another = live.pace_of(records, later, 400 * second)

    assert (0.25, 150.0, 0.25) == (stepping.batches_per_s, stepping.bytes_per_s, stepping.waiting)
    assert (1.0, 4.0) == (stepping.usual_sample_s, stepping.usual_fetch_s)
    assert 0.75 == waiting.waiting
    # Neither the epoch before nor the time since it, such as that of a validation, counts.
    assert (0.0, None) == (another.batches_per_s, another.waiting)


def test_control_characters_are_not_shown():
    """A label or a command cannot send orders to the terminal."""
    assert "a\N{REPLACEMENT CHARACTER}[31m b" == live.printable("a\x1b[31m b")

"""
What a running loader does now, read from its segment's bytes by a process that only looks.

Nothing here is trusted: the bytes may be torn, of another program, or of another version. What
cannot be read to the end is "busy", and what is out of range is no segment.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy

from shmloader.stats.layout import Layout, Read, Records, read_log, read_struct
from shmloader.stats.setting import Setting

SEGMENT_STATES = ("", "live", "idle", "closed")
TRAINER_STATES = ("between", "stepping", "waiting")
WORKER_STATES = ("absent", "idle", "fetching", "collating", "blocked")
SLOT_STATES = ("free", "placed", "ready", "leased", "retired", "spare", "forked", "fenced")
BUSY = "busy"  # it changes faster than it can be read, or its writer died in the middle

# A sample hangs that takes longer than this, and so many times as long as usual.
HANGS_AFTER_S = 10.0
_USUAL_TIMES = 20
_WINDOW_NS = 10_000_000_000  # of an epoch, over which rates are counted
_LOG_MAX = 1 << 16
_WORKERS_MAX = 1 << 16


class NotReadable(ValueError):
    """A segment cannot be read by this version; the text says why."""


class NoSegment(ValueError):
    """A file is no segment, or none that has an owner yet."""


@dataclass(frozen=True)
class Plate:
    """Whose a segment is, and where its parts lie."""

    owner_pid: int  # the trainer, as it knows itself
    owner_start: int  # when that began, in clock ticks after boot; 0: unknown
    loader: int  # the loader's number in its process
    label: str
    state: str
    workers: int
    worker_offset: int
    worker_stride: int
    answers_offset: int
    log_offset: int
    log_records: int
    setting: Setting | None  # what it is run with; None if that cannot be read

    @property
    def blocks(self) -> range:
        """Where the workers' parts begin."""
        end = self.worker_offset + self.workers * self.worker_stride
        return range(self.worker_offset, end, self.worker_stride)


@dataclass(frozen=True)
class LiveWorker:
    """What a worker does now; None stands for what it does not do, or is not known."""

    worker: int  # its place, from 0
    pid: int | None
    state: str  # of WORKER_STATES, or BUSY
    since_s: float | None = None  # seconds since that state began
    ticket: int | None = None  # the batch that it makes
    position: int | None = None  # the sample of it that is fetched, unless all are at once
    index: int | None = None  # of that sample in the dataset, if it is a number
    samples: int | None = None  # of the batch
    sample_s: float | None = None  # for which this sample, or the whole batch, is fetched
    hangs: bool = False  # that is far longer than usual


@dataclass(frozen=True)
class Pace:
    """How fast a loader was in its last seconds; None if no batch was fetched yet."""

    batches_per_s: float
    bytes_per_s: float
    waiting: float | None  # the trainer's share of time in `next()`, 0 to 1
    usual_sample_s: float | None  # half of the samples stayed below
    usual_fetch_s: float | None  # half of the batches did


@dataclass(frozen=True)
class LiveLoader:
    """What one iterator of a loader does now; without a view nothing from `trainer` on is known."""

    loader: int
    label: str
    state: str  # of SEGMENT_STATES
    pace: Pace
    workers: tuple[LiveWorker, ...]
    records: Records  # what the log has of the last batches
    plate: Plate
    trainer: str = BUSY  # or of TRAINER_STATES
    since_s: float | None = None  # seconds since that began
    epoch: int | None = None
    batch: int | None = None  # returned in this epoch, by an earlier run too if it was resumed
    length: int | None = None  # batches of the epoch, if that is known
    ahead: int | None = None  # batches that workers have or have made, as `slots` says
    made: int | None = None  # how many of these are there, if that can be read
    slots: dict[str, int] = field(default_factory=dict)  # as of the last `next()`, by their states
    spilled: int | None = None
    resident_bytes: int | None = None
    view: dict[str, Any] | None = None  # the trainer's own numbers of this epoch, in ns


def read_plate(read: Read, total_bytes: int, layout: Layout) -> Plate:
    """Read whose segment this is."""
    dtype = layout.dtype("nameplate")
    begin = read(dtype.itemsize, 0)
    if len(begin) < dtype.itemsize or layout.values("nameplate", begin)["magic"] != layout.magic:
        raise NoSegment("it is not a segment of shmloader")
    if layout.values("nameplate", begin)["layout"] != layout.checksum:
        raise NotReadable(
            "it was made by another version of shmloader, with another layout: use the shmloader "
            "of that program's environment"
        )
    plate = read_struct(read, layout, "nameplate", 0)
    if plate is None:
        raise NotReadable("its owner died while it wrote its name")
    if not _is_sound(plate, total_bytes, layout):
        raise NotReadable("its header is damaged")
    plate["label"] = printable(plate["label"].decode(errors="replace"))
    plate["state"] = SEGMENT_STATES[plate["state"]]
    setting = Setting.from_bytes(plate["about"])
    # A forged one must not have the model play for ever.
    seats = max(setting.workers, setting.most_workers) if setting else 0
    plate["setting"] = setting if setting and seats == plate["workers"] else None
    return Plate(**{each.name: plate[each.name] for each in fields(Plate)})


def _is_sound(plate: dict[str, Any], total_bytes: int, layout: Layout) -> bool:
    if plate["total_bytes"] != total_bytes or not 0 < plate["state"] < len(SEGMENT_STATES):
        return False
    if plate["workers"] > _WORKERS_MAX or plate["log_records"] > _LOG_MAX:
        return False
    view_end = layout.offset("worker", "view") + layout.dtype("worker_view").itemsize
    workers_end = plate["worker_offset"] + plate["workers"] * plate["worker_stride"]
    log_end = plate["log_offset"] + plate["log_records"] * layout.dtype("log_record").itemsize
    is_ordered: bool = workers_end <= plate["log_offset"] and log_end <= total_bytes
    ring_end = plate["answers_offset"] + layout.dtype("ring").itemsize
    return is_ordered and plate["worker_stride"] >= max(view_end, ring_end)


def printable(text: str) -> str:
    """Replace what a terminal would not show, or would obey."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def read_loader(read: Read, plate: Plate, layout: Layout, now_ns: int) -> LiveLoader:
    """Read what an iterator of a loader does now."""
    view = _trainer(read, layout)
    records = read_log(read, layout, plate.log_offset, plate.log_records)
    pace = pace_of(records, view, now_ns)
    offset = layout.offset("worker", "view")
    views = (read_struct(read, layout, "worker_view", block + offset) for block in plate.blocks)
    there = (_worker(*each, layout, now_ns, pace) for each in enumerate(views))
    workers, plate = _without_free_seats(tuple(there), plate)
    seen = LiveLoader(plate.loader, plate.label, plate.state, pace, workers, records, plate)
    if view is None:
        return seen
    slots = dict(zip(SLOT_STATES, view["counts"], strict=False))
    return replace(
        seen,
        view=view,
        trainer=TRAINER_STATES[view["state"]],
        since_s=_seconds(now_ns, view["since_ns"]),
        epoch=view["epoch"],
        batch=view["resumed_at"] + view["batches"],
        length=None if view["length"] == layout.no_number else view["length"],
        ahead=slots["placed"] + slots["ready"],
        made=_made(read, plate, layout, slots),
        slots=slots,
        spilled=view["spilled"],
        resident_bytes=view["resident_bytes"],
    )


def _without_free_seats(
    workers: tuple[LiveWorker, ...], plate: Plate
) -> tuple[tuple[LiveWorker, ...], Plate]:
    """Leave out the seats of workers that were not added yet, or were let go."""
    setting = plate.setting
    if setting is None or not setting.most_workers:
        return workers, plate
    there = tuple(worker for worker in workers if worker.pid is not None)
    return there, replace(plate, setting=replace(setting, workers=max(1, len(there))))


def _trainer(read: Read, layout: Layout) -> Any:
    view = read_struct(read, layout, "trainer_view", layout.offset("control", "trainer"))
    return None if view is None or view["state"] >= len(TRAINER_STATES) else view


def _made(read: Read, plate: Plate, layout: Layout, slots: Mapping[str, int]) -> int | None:
    """Count the batches that are there: those that the trainer has seen, and all answers behind."""
    made, size = slots["ready"], layout.dtype("ring").itemsize
    for block in plate.blocks:
        data = read(size, block + plate.answers_offset)
        if len(data) < size:
            return None
        ring = layout.values("ring", data)
        made += (ring["write_pos"] - ring["read_pos"]) & 0xFFFFFFFF
    # A worker that wants pages, or begins an epoch, sends no batch.
    return min(made, slots["placed"] + slots["ready"])


def _seconds(now_ns: int, since_ns: int) -> float:
    # What began after the clock was read began just now; what has not begun has no age.
    return max(0, now_ns - since_ns) / 1e9 if since_ns else 0.0


def _worker(number: int, view: Any, layout: Layout, now_ns: int, pace: Pace) -> LiveWorker:
    if view is None or view["state"] >= len(WORKER_STATES):
        return LiveWorker(number, None, BUSY)
    state = WORKER_STATES[view["state"]]
    pid = view["pid"] & 0xFFFF_FFFF  # above stands that it has not sat down, as csrc/view.h says
    worker = LiveWorker(number, pid or None, state, _seconds(now_ns, view["since_ns"]))
    if state in ("absent", "idle"):
        return worker
    worker = replace(worker, ticket=view["ticket"], samples=view["samples"] or None)
    if state != "fetching":
        return worker
    is_known = view["position"] != layout.no_position
    usual_s = pace.usual_sample_s if is_known else pace.usual_fetch_s
    sample_s = _seconds(now_ns, view["sample_since_ns"])
    return replace(
        worker,
        position=view["position"] if is_known else None,
        index=None if view["index"] == layout.no_index else view["index"],
        sample_s=sample_s,
        hangs=sample_s > max(HANGS_AFTER_S, _USUAL_TIMES * (usual_s or 0.0)),
    )


def pace_of(records: Records, view: dict[str, Any] | None, now_ns: int) -> Pace:
    """Count what a loader did in the last seconds of its epoch, and of the last one after that."""
    sample_s, fetch_s = _usual(records)
    if view is not None:
        records = records[records["epoch"] == view["epoch"]]
    asked, returned = (records[name].astype(float) for name in ("asked_ns", "returned_ns"))
    begun_ns = float(now_ns - _WINDOW_NS)
    if len(records):
        # The log may hold less than the window, but what it holds of it is all that came since.
        begun_ns = max(begun_ns, asked[0])
    elif view is not None:
        begun_ns = max(begun_ns, float(view["begun_ns"]))
    is_recent = returned > max(begun_ns, 0.0)
    count, ended_ns = int(is_recent.sum()), float(now_ns)
    if view is not None and view["state"] == 0 and count:
        ended_ns = returned[-1]  # the epoch is over
    span_ns = max(1.0, ended_ns - begun_ns)
    waited_ns = float(numpy.sum((returned - numpy.maximum(asked, begun_ns))[is_recent]))
    if view is not None and view["state"] == TRAINER_STATES.index("waiting"):
        waited_ns += max(0.0, now_ns - max(view["since_ns"], begun_ns))
    return Pace(
        batches_per_s=count * 1e9 / span_ns,
        bytes_per_s=float(numpy.sum(records["bytes"][is_recent].astype(float))) * 1e9 / span_ns,
        waiting=min(1.0, max(0.0, waited_ns / span_ns)) if count or waited_ns > 0 else None,
        usual_sample_s=sample_s,
        usual_fetch_s=fetch_s,
    )


def _usual(records: Records) -> tuple[float | None, float | None]:
    """The median seconds of a sample and of a batch, as they were fetched."""
    times = {name: records[f"{name}_ns"].astype(float) for name in ("taken", "fetched")}
    fetching = times["fetched"] - times["taken"] - records["blocked_fetching_ns"].astype(float)
    if not len(fetching):
        return None, None
    each = fetching / numpy.maximum(records["samples"], 1)
    return float(numpy.median(each)) / 1e9, float(numpy.median(fetching)) / 1e9

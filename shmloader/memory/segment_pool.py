"""A loader's segments: those that its iterators use, and those that wait for its next epoch."""

import contextlib
import itertools
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import Any

import numpy

from shmloader import log
from shmloader.core import BatchLog, Ledger, generation, view_layout
from shmloader.memory import page_locks
from shmloader.memory.account import account, living
from shmloader.memory.segment import Segment, Shape, first_shape, made_here
from shmloader.stats import Held, Stats, WorkersChange, WorkerStats
from shmloader.stats.history import History
from shmloader.stats.layout import Layout, in_seconds
from shmloader.stats.setting import Setting, in_use

LAYOUT = Layout(view_layout())

_numbers = itertools.count(1)
_CHANGES = 64  # of the number of workers, that are kept


class SegmentPool:
    """
    Lends segments to a loader's iterators, and counts over all of them.

    A segment comes back only when every worker that could write to it has been reaped; its pages
    are warm then, which is why one is kept. A segment of persistent workers rests between two
    epochs. The pages of both are idle: they go when another loader needs the room.

    In a forked child the pool is empty again: its segments and their counts are the parent's.
    """

    def __init__(self, keep_pages: bool = True) -> None:
        """Keep a released segment and the pages of one that rests, or none."""
        self.keeps_pages = keep_pages  # between epochs
        self.number = next(_numbers)
        self.name = f"loader {self.number}"  # in what the logger is told
        # For viewers: the name of its dataset's class, and what the loader is run with.
        self.label, self.about = "", b""
        self._start()

    def _start(self) -> None:
        self._generation = generation()
        self._idle: list[Segment] = []
        # By id: another thread may add one while these are listed, which a WeakSet does not bear.
        self._lent: weakref.WeakValueDictionary[int, Segment] = weakref.WeakValueDictionary()
        self._resting: dict[int, Segment] = {}
        self._past = Stats()
        self.spills: Counter[str] = Counter()  # of the loader's whole life, by reason
        self.left: Counter[int] = Counter()  # by worker: how often it left, and was replaced
        # Batches for a device, as `Stats.copied`, and the nanoseconds in next() for them, in all
        # (`copy_ns`) and for page-locking (`lock_ns`).
        self.copying: Counter[str] = Counter()
        self.learnt_workers = 0  # how many were found to be right; 0: that is not known
        self.changes: tuple[WorkersChange, ...] = ()  # the last ones of their number
        self.waited_share: float | None = None  # of its time, that the loop waited since the last
        self.learnt: Any = None  # what else was learnt of them by what finds it
        self.history = History()  # what the loader's epochs did
        self._past_log = b""
        self.advice: str | None = None  # against more spills, until the user was told
        # What kept a worker from telling a state of its dataset; "" once the user was told.
        self.untold: str | None = None
        account().enter(self)

    def _check_owner(self) -> None:
        """Start anew in a forked child, whose parent goes on using what was here."""
        if self._generation != generation():
            self._start()

    # Any thread may come in between two lines here, another loader's too: what is listed is copied
    # first, and each move of a list is one step of the interpreter. No lock is held, because user
    # code may run at any line, in a finalizer or a signal's handler, and wait for other threads.

    def acquire(self, shape: Shape) -> Segment:
        """Lend a segment of this shape: one that was released, or a new one."""
        self._check_owner()
        segment = self._find(shape)
        if segment is None:
            self._close_idle()  # of another shape: options were changed
        account().make_room(self)
        how = "reused"
        if segment is None:
            how = "made"
            segment = Segment(_first(shape), shape.wanted)
        page_locks.use(segment.ledger, True)
        self._lent[id(segment)] = segment
        self._tell_of(segment, how)
        return segment

    def note_change(self, segment: Segment, change: WorkersChange) -> None:
        """Note that there are more workers now, or fewer, and tell viewers."""
        self.changes = (*self.changes[1 - _CHANGES :], change)
        self.learnt_workers, self.waited_share = change.after, None
        setting = Setting.from_bytes(self.about)
        if setting is not None:
            self.about = replace(setting, changed=self.last_change).to_bytes()
            self._name(segment)

    @property
    def last_change(self) -> Sequence[float] | None:
        """The numbers of the last change of the number of workers; None: there was none."""
        if not self.changes:
            return None
        *numbers, waited_share, _ = astuple(self.changes[-1])
        return *numbers, round(waited_share, 6)  # shown as a percentage, as the report does

    def _changes_until_now(self) -> tuple[WorkersChange, ...]:
        if not self.changes:
            return ()
        *earlier, last = self.changes
        return *earlier, replace(last, waited_since=self.waited_share)

    def _name(self, segment: Segment) -> None:
        BatchLog(segment.ledger).name(
            {
                "label": self.label.encode(errors="replace"),
                "about": self.about,
                "loader": self.number,
                **made_here(),
            }
        )

    def _tell_of(self, segment: Segment, how: str) -> None:
        """Tell viewers and the logger whose segment it is."""
        self._name(segment)
        log.tell(
            "%s: segment %s: %d slots and %d spare ranges of %.1f MB each, %.1f MB resident",
            self.name,
            how,
            segment.shape.slots,
            segment.shape.spares,
            segment.shape.range_bytes / 1e6,
            segment.ledger.resident_bytes / 1e6,
        )

    def _find(self, shape: Shape) -> Segment | None:
        for segment in list(self._idle):
            if segment.wanted == shape.wanted:
                with contextlib.suppress(ValueError):  # another thread took it
                    self._idle.remove(segment)
                    return segment
        return None

    def likely_slots(self, shape: Shape) -> int:
        """Count the slots of a segment of this shape, which a limit may have lowered."""
        self._check_owner()
        known = [*living(self._lent), *list(self._idle)]
        alike = (each.shape.slots for each in known if each.wanted == shape.wanted)
        return next(alike, None) or _first(shape).slots

    def release(self, segment: Segment) -> None:
        """
        Keep a segment for the next epoch in place of the one that was kept before.

        One is enough for epochs that follow each other. None is kept if something may still read
        its retired slots.
        """
        self._take_back(segment)
        segment.ledger.restart()
        if not self.keeps_pages or segment.ledger.counts()["retired"]:
            self._close(segment)
        else:
            self._rest(segment.ledger, keeps_pages=True)
            self._close_idle()
            BatchLog(segment.ledger).show_as("idle")
            self._idle.append(segment)

    def rest(self, segment: Segment) -> None:
        """Note that an epoch is over for a segment whose workers wait for the next one."""
        self._rest(segment.ledger, self.keeps_pages)
        page_locks.use(segment.ledger, self.keeps_pages)
        BatchLog(segment.ledger).show_as("idle")
        self._resting[id(segment)] = segment

    def wake(self, segment: Segment) -> None:
        """Note that the next epoch of a resting segment begins."""
        page_locks.use(segment.ledger, True)
        if self._resting.pop(id(segment), None) is not None:
            BatchLog(segment.ledger).show_as("live")
        account().make_room(self)

    @property
    def idle_bytes(self) -> int:
        """Bytes of pages that wait for an epoch."""
        return sum(ledger.resident_bytes for ledger in _ledgers_of(self._waiting()))

    def give_back(self, *, while_running: bool) -> None:
        """
        Give back all pages that wait for an epoch; those of held batches as these are dropped.

        Args:
            while_running: Also the pages that wait for later batches of running epochs.
        """
        for ledger in _ledgers_of(self._waiting()):
            ledger.rest_held(keeps_pages=False)
            page_locks.use(ledger, False)
            self.rest_ledger(ledger, keeps_pages=False)
        for ledger in self._ledgers() if while_running else []:
            self.rest_ledger(ledger, keeps_pages=False)

    def _rest(self, ledger: Ledger, keeps_pages: bool) -> None:
        """Give back what the next epoch will not need, now and as held batches are dropped."""
        ledger.rest_held(keeps_pages)
        self.rest_ledger(ledger, keeps_pages)

    def rest_ledger(self, ledger: Ledger, keeps_pages: bool) -> None:
        """Give back pages of free slots, as `Ledger.rest` does, and the locks of such pages."""
        if not keeps_pages:
            page_locks.unlock_free(ledger)
        ledger.rest(keeps_pages)

    def discard(self, segment: Segment) -> None:
        """Never use a segment again: a worker that could write to it was not reaped."""
        self._take_back(segment)
        self._close(segment)

    def _take_back(self, segment: Segment) -> None:
        self._lent.pop(id(segment), None)
        self._resting.pop(id(segment), None)

    def _close(self, segment: Segment) -> None:
        stats = _stats_of(segment.ledger)
        self._past += stats.past()
        if stats.batches:
            self._past_log = BatchLog(segment.ledger).records()
        segment.close()
        log.tell(
            "%s: segment freed: %.1f MB of pages, those of %d held batches once they are dropped",
            self.name,
            stats.resident_bytes / 1e6,
            stats.slots["leased"],
        )

    def clear(self) -> None:
        """Free all segments that no iterator uses: the loader is closed."""
        self._check_owner()
        self._close_idle()
        log.tell("%s: closed", self.name)

    def _close_idle(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._close(self._idle.pop())

    def _waiting(self) -> list[Segment]:
        return [*list(self._idle), *list(self._resting.values())]

    def _ledgers(self) -> list[Ledger]:
        self._check_owner()
        return _ledgers_of([*list(self._idle), *living(self._lent)])

    def stats(self) -> Stats:
        """Count over all segments, even those that are gone."""
        stats = sum(map(_stats_of, self._ledgers()), self._past)
        next_times, step_times = self.history.times()
        return replace(
            stats,
            spills=dict(self.spills),
            replaced=self.left.total(),
            copied={
                name: count
                for name, count in dict(self.copying).items()
                if not name.endswith("_ns")
            },
            next=next_times,
            step=step_times,
            changes=self._changes_until_now(),
            epochs=self.history.epochs(),
        )

    def most_slots(self) -> int:
        """Count the slots in use of the open segment that has most of them."""
        counts = (ledger.counts() for ledger in self._ledgers())
        return max(map(in_use, counts), default=0)

    def logs(self) -> list[bytes]:
        """
        Copy out what each segment says of its last batches, as `view_layout` describes it.

        The one that was freed last is among them.
        """
        logs = [BatchLog(ledger).records() for ledger in self._ledgers()]
        return [self._past_log, *logs] if self._past_log else logs

    def held(self) -> list[Held]:
        """List the batches that are held in the slots of all segments that are open."""
        return [Held(*each) for ledger in self._ledgers() for each in ledger.held()]


def _first(shape: Shape) -> Shape:
    first = first_shape(*shape.wanted, shape.fewest, shape.enough_bytes)
    return replace(first, remedy=shape.remedy)


def _ledgers_of(segments: list[Segment]) -> list[Ledger]:
    """List the ledgers of segments, except for those that another thread closes meanwhile."""
    ledgers = (getattr(segment, "ledger", None) for segment in segments)
    return [ledger for ledger in ledgers if ledger is not None]


def _stats_of(ledger: Ledger) -> Stats:
    """Read what one segment's ledger and workers have counted."""
    counts = ledger.counts()
    sums: dict[str, Any] = ledger.sums()
    workers = workers_of(BatchLog(ledger))
    return Stats(
        wait_s=sums.pop("waited_ns") / 1e9,
        looks_s=sums.pop("looks_ns") / 1e9,
        worker_busy_s=sum(worker.fetching_s + worker.collating_s for worker in workers),
        worker_starved_s=sum(worker.starved_s for worker in workers),
        worker_blocked_s=sum(worker.blocked_s for worker in workers),
        retired=counts["retired"],
        resident_bytes=ledger.resident_bytes,
        locked_bytes=ledger.page_locked_bytes,
        left_out=sum(worker.left_out for worker in workers),
        slots=counts,
        workers=tuple(workers),
        **sums,
    )


def workers_of(notes: BatchLog) -> list[WorkerStats]:
    """Read what the workers of a segment did since it was made."""
    clocks = numpy.frombuffer(notes.clocks(), LAYOUT.dtype("worker_clock"))
    return [WorkerStats(**in_seconds(LAYOUT.named(clock))) for clock in clocks]

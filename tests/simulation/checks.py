"""What all kinds of run check, and what they have to wait for."""

from __future__ import annotations

import mmap
import os
import signal
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy

from shmloader.memory.segment import Segment
from shmloader.memory.segment_pool import LAYOUT
from shmloader.transport.transport import Transport
from tests.simulation.door import Door
from tests.simulation.waits import Waits

TAKE_WITHIN_S = 60.0  # of virtual time, from one answer to the next
_BLOCK_BYTES = 512  # of st_blocks


class Wrong(AssertionError):
    """Something that must hold does not."""


class NoAnswer(Wrong):
    """It took too long, in virtual time."""


@dataclass
class Kept:
    """An answer that the user keeps, what must stand in it, and until which answer."""

    array: Any
    wanted: numpy.ndarray
    until: int

    def check(self, when: str) -> None:
        """Compare all of it."""
        if not numpy.array_equal(self.array, self.wanted):
            raise Wrong(f"an answer of {len(self.wanted)} numbers is not what it was, {when}")


def drop(kept: list[Kept], count: int) -> None:
    """Drop so many of those that are kept, those with the earliest time first."""
    kept.sort(key=lambda each: each.until)
    for _ in range(count):
        kept.pop(0).check("when it goes")


class Children:
    """Processes that the user forks."""

    def __init__(self, door: Door, waits: Waits) -> None:
        """Have none."""
        self._door, self._waits = door, waits
        self._pids: dict[int, bool] = {}  # and whether each may be killed

    def fork(self, be: Callable[[], None], may_die: bool = False) -> None:
        """Fork one, which calls that and ends; may_die: it is among those that are killed."""
        self._waits.may_die = may_die
        try:
            pid = os.fork()
        finally:
            self._waits.may_die = True
        if pid == 0:
            _end_after(be)
        self._pids[pid] = may_die

    def wait(self) -> None:
        """Wait for all; none may have failed."""
        for pid, may_die in self._pids.items():
            while not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                self._door.look(None, True)
            _, status = os.waitpid(pid, 0)
            if status != 0 and not (may_die and status == signal.SIGKILL):
                raise Wrong(f"a child found that its batches had changed, or failed: {status}")


def _end_after(be: Callable[[], None]) -> None:
    code = 1
    try:
        be()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def check_threads() -> None:
    """Check that no thread was started in this process."""
    count = len(os.listdir("/proc/self/task"))
    if count > 1 or threading.active_count() > 1:
        raise Wrong(f"the trainer has {count} threads")


def check_settled(transport: Transport, may_have_more: bool = False) -> None:
    """
    Check the slots when nothing is under way or held: all free, and with the pages counted.

    Args:
        transport: Whose slots they are.
        may_have_more: They may have more pages, which a process that only reads has given a hole.
    """
    transport.pump()
    ledger = transport.ledger
    counts = ledger.counts()
    busy = {state: counts[state] for state in ("placed", "ready", "leased") if counts[state]}
    if busy:
        raise Wrong(f"nothing is under way or held, and slots are not free: {busy}")
    if ledger.has_demands:
        raise Wrong(f"slots that are free want pages: {ledger.wants()} {ledger.short_slots()}")
    exist = _pages_bytes(transport.segment)
    if exist < ledger.resident_bytes or (exist > ledger.resident_bytes and not may_have_more):
        raise Wrong(f"the slots have {exist} bytes of pages, not {ledger.resident_bytes}")


def _pages_bytes(segment: Segment) -> int:
    """Count the bytes of pages that the slots have."""
    plate = LAYOUT.dtype("nameplate")
    words = os.pread(segment.descriptor, plate.itemsize, 0)
    table = LAYOUT.named(numpy.frombuffer(words, plate)[0])
    records_bytes = int(table["log_records"]) * LAYOUT.dtype("log_record").itemsize
    table_pages = -(-(int(table["log_offset"]) + records_bytes) // mmap.PAGESIZE)
    blocks = os.fstat(segment.descriptor).st_blocks
    return blocks * _BLOCK_BYTES - table_pages * mmap.PAGESIZE

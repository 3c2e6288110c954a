"""Measures windows of time: what the trainer waited, and what each worker did."""

import time

from shmloader.autoscaling.controller import Sums, Window
from shmloader.memory import groups, limits
from shmloader.memory.segment_pool import workers_of
from shmloader.processes import scheduling
from shmloader.stats import WorkerStats
from shmloader.transport import looking
from shmloader.transport.transport import Transport
from shmloader.transport.workers import Workers

LEAST_S = 1.0  # of a window. Chosen: a worker's share of a batch is small then
LEAST_BATCHES = 20
_SETTLE_S = 10.0  # how long a window waits for the first answers of new workers


class Windows:
    """The window of one transport that is open; it may have begun in earlier epochs."""

    def __init__(self, transport: Transport, processes: Workers, sums: Sums) -> None:
        """Go on with what earlier iterators have measured; no time passes until `go_on`."""
        self._transport = transport
        self._processes = processes
        self.sums = sums
        self._runs = False
        self._settle(processes.living())

    def _settle(self, new: set[int]) -> None:
        self._new = new  # workers that have not answered yet
        self._settles_s = time.monotonic() + _SETTLE_S

    def _mark(self) -> None:
        """Count from here on."""
        self._clocks, self._computed = workers_of(self._transport.notes), self._computed_ns()
        sums = self._transport.ledger.sums()
        self._waited_ns, self._batches = sums["waited_ns"], sums["batches"]
        self._began_s = time.monotonic()

    def renew(self, new: set[int]) -> None:
        """Begin another window, once these workers have answered, or had time to."""
        self.sums = Sums()
        self._settle(new)
        self._mark()

    def pause(self) -> None:
        """The time from now on is no part of the window."""
        if self._runs and not self._new:
            self.sums += self._since()
        self._runs = False

    def go_on(self) -> None:
        """It is again."""
        self._runs = True
        self._mark()

    def _since(self) -> Sums:
        """What happened since the mark."""
        sums = self._transport.ledger.sums()
        clocks, now = workers_of(self._transport.notes), self._computed_ns()
        done = [one - then for one, then in zip(clocks, self._clocks, strict=True)]
        return Sums(
            seconds=time.monotonic() - self._began_s,
            waited_s=(sums["waited_ns"] - self._waited_ns) / 1e9,
            delivered=sums["batches"] - self._batches,
            made=sum(each.batches for each in done),
            busy_s=sum(each.fetching_s + each.collating_s for each in done),
            computed_s=sum(max(0, now[pid] - self._computed.get(pid, 0)) for pid in now) / 1e9,
        )

    def _computed_ns(self) -> dict[int, int]:
        """Nanoseconds in which each worker ran or was ready to since it began, by its process."""
        pids = filter(None, self._processes.pids())
        return {pid: sum(scheduling.scheduled_ns(pid)) for pid in pids}

    def take(self) -> Window | None:
        """Close the window and begin the next one; None: it is not long enough yet."""
        if self._new:
            self._look_for_answers(workers_of(self._transport.notes))
            return None
        if self.sums.seconds + time.monotonic() - self._began_s < LEAST_S:
            return None
        total = self.sums + self._since()
        if total.delivered < LEAST_BATCHES:
            return None
        self.sums = Sums()
        self._mark()
        return Window(workers=self._processes.working, **vars(total))

    def _look_for_answers(self, clocks: list[WorkerStats]) -> None:
        before = self._clocks
        self._new = {each for each in self._new if clocks[each].batches == before[each].batches}
        if not self._new or time.monotonic() >= self._settles_s:
            self._new = set()
            self._mark()


def largest_bytes(processes: Workers) -> int:
    """
    Measure the largest of the workers: what it has for itself, and its part of what it shares.

    The kernel looks at every page for it, which takes 32 ms for a GiB, so it is asked of one alone.
    """
    pids = [pid for pid in processes.pids() if pid]
    largest = max(pids, key=_resident_pages, default=0)
    found = groups.read_fields(f"/proc/{largest}/smaps_rollup") if largest else {}
    return found.get("Pss:", 0) * 1024


def _resident_pages(pid: int) -> int:
    words = groups.read_text(f"/proc/{pid}/statm").split()
    return int(words[1]) if len(words) > 1 else 0


def workers_with_memory(now: int, each_bytes: int) -> int:
    """Count the workers for which there is memory, if each takes so many bytes; 0: not known."""
    left_bytes = limits.available_bytes()
    if left_bytes is None or each_bytes == 0:
        return 1 << 30
    # A quarter stays: batches, and what others take, need room too.
    return now + max(0, left_bytes * 3 // 4) // each_bytes


def cores_for(processes: Workers) -> float:
    """How many cores these workers may use, less what others of this process keep busy."""
    return max(1.0, scheduling.cores() - looking.count_others(processes))

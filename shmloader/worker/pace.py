"""How many threads a worker needs that fetches samples, found while they work."""

import time
from collections import deque
from statistics import median

AT_FIRST, _AT_MOST = 2, 512  # threads, where their number is to be found
_WINDOW_S = 0.05  # shortest time over which a count is judged
_RATES = 5  # windows of which the middle rate counts
_AT_START, _GREW = 4, 2.0  # times as many threads at least, as long as they fetch twice as much
_KEPT = 0.85  # of a rate, or fewer threads are slower
_SPARE = 1.5  # threads per task that is needed on its way
_ABOUT = 0.75  # of a count: what is nearer is the same
_BUSY = 0.5  # cores in use: threads take turns
_STALE_S, _PROBE = 20.0, 0.5  # after this time half the threads show how long a task takes now


class Pace:
    """
    Finds how many threads a worker needs: the rate times the shortest mean time of a task.

    By Little's law as many tasks are begun and not done at that rate if none waits for another: for
    Python's lock, for a core, or for a server that has enough to do. More threads would only wait
    for each other. It is the rule of BBR for the packets that a network should hold.

    At the start there is no rate to go by: as many threads as would keep a core busy are tried, by
    how much of its time a task computes.

    Attributes:
        is_starting: True while more threads fetch many times more, and CPU times are wanted.
    """

    def __init__(self) -> None:
        self._rates: deque[float] = deque(maxlen=_RATES)
        self._task_s = 0.0  # shortest mean time of a task; 0: not known
        self._noted_at = 0.0
        self.is_starting = True
        self._is_probing = False
        self._rate_before = 0.0  # that of more threads, when some were taken away
        self._begin(0.0)

    def _begin(self, at: float) -> None:
        self._since = at
        self._fetched = 0
        self._tasks_s = self._cpu_s = 0.0
        self._begun_at, self._process_s = time.monotonic(), time.process_time()

    def note(self, task_s: float, cpu_s: float, now: float) -> bool:
        """
        Count a sample that was fetched; on several threads, so that a few may be lost.

        Args:
            task_s: How long it took.
            cpu_s: How long it computed; needed at the start only.
            now: When it was there.

        Returns:
            True if it is time to judge.
        """
        if not self._since:
            self._begin(now)
        if now < self._since:  # begun with another number of threads
            return False
        self._fetched += 1
        self._tasks_s += task_s
        self._cpu_s += cpu_s
        return now - self._since >= _WINDOW_S

    def judge(self, count: int, held: int) -> int:
        """
        Return how many threads there should be.

        Args:
            count: How many there are.
            held: How many samples the worker had at most, done or not. More threads would have
                nothing to do. With one less, a last sample waits for all the others: where they
                only wait, they begin together and end together.
        """
        now, fetched = time.monotonic(), self._fetched
        if fetched < count or now - self._since < _WINDOW_S:  # or judged meanwhile
            return count
        rate, mean_s = fetched / (now - self._since), self._tasks_s / fetched
        wanted = count
        cores = (time.process_time() - self._process_s) / (now - self._begun_at)
        # Otherwise threads had nothing to do, because the trainer is slower, or the batch in turn
        # waits for a slow sample. A busy process is the limit itself, even if threads look idle:
        # they wait for Python's lock between two samples.
        if rate * mean_s >= _ABOUT * count or cores >= _BUSY:
            wanted = min(self._next(count, rate, mean_s, now), max(count, held), _AT_MOST)
        else:
            self.is_starting = False
        # A new thread has to connect to its server first, so few more are none, unless then nothing
        # waits for a thread.
        is_enough = count < wanted == held
        if _ABOUT < wanted / count < 1 / _ABOUT and not is_enough and not self._is_probing:
            wanted = count
        if wanted < count and not self._rate_before:
            self._rate_before = rate
        elif wanted >= count:
            self._rate_before = 0.0
        self._begin(now if wanted == count else now + mean_s)
        return wanted

    def _next(self, count: int, rate: float, mean_s: float, now: float) -> int:
        is_slower = rate < _KEPT * self._rate_before
        if is_slower and not self._is_probing:
            self._rates.clear()  # tasks take longer than they did: find out anew
            self._task_s, self.is_starting = 0.0, True
        self.is_starting &= rate > _GREW * max(self._rates, default=0.0)
        if self.is_starting:
            self._rates.clear()
        if self._is_probing or not 0 < self._task_s < mean_s:
            self._task_s = mean_s
        if self.is_starting or is_slower:
            self._noted_at = now  # tasks do not wait for each other
        if not is_slower:
            self._rates.append(rate)
        self._is_probing = now - self._noted_at > _STALE_S
        if self.is_starting:
            busy = _SPARE * self._tasks_s / max(self._cpu_s, 1e-9)
            return round(max(count * _AT_START, min(busy, _AT_MOST)))
        need = median(self._rates) * self._task_s
        if self._is_probing:
            if (fewer := max(1, round(need * _PROBE + 0.5))) < count:
                return fewer
            self._is_probing, self._noted_at = False, now  # those are all needed
        return max(1, round(need * _SPARE + 0.5))

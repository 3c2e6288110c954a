"""
Looking ahead: a worker takes requests before their turn, and threads fetch their samples.

Ahead are only requests, copied out of their slots; the slots are written in turn, by the worker's
main thread. Looking ahead ends at an order of another kind, which holds for what comes after it.
"""

import operator
from collections import deque
from collections.abc import Callable
from typing import Any

from shmloader.core import Desk, Order, Samples, Taken
from shmloader.samples.skip_errors import Tolerance
from shmloader.worker.fetch_threads import FetchThreads, Task
from shmloader.worker.seeds import Turn

_PLACE = Order.PLACE
_SLICE_S = 1.0  # longest park before the worker looks again


class LookAhead:
    """Takes a worker's orders, has threads fetch the samples, and waits for them."""

    def __init__(self, desk: Desk, count: int, base_seed: int | None) -> None:
        """Start so many threads; base_seed: of `rng()` there, None: there is none."""
        self._desk = desk
        self._base_seed = base_seed
        self._threads = FetchThreads(count, self._ring)
        self._orders: deque[tuple[Order, Any, list[Task]]] = deque()
        self._looks = True  # nothing but requests was taken so far
        self._in_hand: list[Task] = []
        self._awaited: Task | None = None
        self._fetch: Callable[[Any], Any] | None = None
        self._is_split = False
        self._tolerance: Tolerance | None = None

    def aim(
        self,
        fetch: Callable[[Any], Any] | None,
        is_split: bool,
        tolerance: Tolerance | None = None,
    ) -> None:
        """
        Fetch in another way from now on.

        Args:
            fetch: Returns what the dataset has for an index, for each sample of a request if it
                `is_split`; None: nothing is fetched.
            tolerance: Leaves out samples of a request that raise; None: nothing does.
        """
        self._fetch = fetch
        self._is_split = is_split
        self._tolerance = tolerance

    def end(self) -> None:
        """Let go of the dataset; only a sample that is fetched for very long still holds it."""
        self._fetch = None
        for tasks in (self._in_hand, *(tasks for _, _, tasks in self._orders)):
            for task in tasks:
                task.drop()
        self._threads.end()

    def take(self, timeout_s: float) -> Any:
        """Take the next order in hand, as `Desk.take`."""
        self._look_further()
        if not self._orders:
            order = self._desk.take_ahead(timeout_s)
            if order is None:
                return None
            self._note(*order)
            self._look_further()
        # Of an order that was answered with the error of the worker's start.
        for task in self._in_hand:
            task.drop()
        verb, value, self._in_hand = self._orders.popleft()
        if verb is not _PLACE:
            self._looks = True
            return verb, value
        self._desk.begin(value)
        return verb, value.index

    def _look_further(self) -> None:
        while self._looks and (order := self._desk.take_ahead()) is not None:
            self._note(*order)

    def _note(self, verb: Order, value: Any) -> None:
        tasks = []
        if verb is not _PLACE:
            self._looks = False
        elif self._fetch is not None:
            tasks = self._tasks_of(value, self._fetch)
        self._orders.append((verb, value, tasks))
        for task in tasks:
            self._threads.put(task)

    def _tasks_of(self, taken: Taken, fetch: Callable[[Any], Any]) -> list[Task]:
        if not self._is_split:
            return [Task(fetch, taken.index, self._turn(taken))]
        tasks = []
        try:
            for position, index in enumerate(taken.index):
                tasks.append(Task(fetch, index, self._turn(taken, position)))
        except Exception as error:
            # Such as of a request that is no list of indices: the answer to it, in its turn.
            tasks.append(Task(fetch, None, None, error))
        return tasks

    def _turn(self, taken: Taken, *position: int) -> Turn | None:
        if taken.numbers is None or self._base_seed is None:
            return None
        return Turn((self._base_seed, *taken.numbers), None, *position)

    def samples(self, request: Any) -> Any:
        """
        Wait for the samples of the order in hand, which the collate function gets.

        Args:
            request: The order's, which shows viewers what is waited for.

        Raises:
            Stopping: The trainer wants this worker to leave.
            EmptyBatch: All samples were left out.
            BaseException: The error of the first sample that has one, as if fetched in turn.
        """
        tasks, self._in_hand = self._in_hand, []
        try:
            if not self._is_split:
                return self._result(tasks[0])
            shown = request if isinstance(request, Samples) else tasks
            in_turn = (task for task, _ in zip(tasks, shown, strict=True))
            if self._tolerance is None:
                return [self._result(task) for task in in_turn]
            return self._tolerance.collect(in_turn, self._result, operator.attrgetter("index"))
        finally:
            for task in tasks:
                task.drop()

    def _result(self, task: Task) -> Any:
        self._awaited = task
        while not task.is_done:
            self._desk.park(lambda: task.is_done, self._looks, _SLICE_S)
            self._look_further()
        self._awaited = None
        return task.take()

    def _ring(self, task: Task) -> None:
        if task is self._awaited:
            self._desk.ring()

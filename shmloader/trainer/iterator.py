"""
One epoch in the trainer: torch's scheduling over our transport.

The sampler, the order, the credits, the seeds and the errors are torch's own code, inherited. Only
how workers are started and stopped, and how their answers arrive, is replaced.
"""

import itertools
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from torch._utils import ExceptionWrapper
from torch.autograd import _profiler_enabled  # type: ignore[attr-defined]
from torch.utils.data import _utils as torch_utils
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter as _Torchs

from shmloader import log
from shmloader.core import Answer, HandsOut, InHand, generation
from shmloader.errors import (
    EmptyBatch,
    RetentionWarning,
    WorkerBroken,
    at_users_line,
    is_within,
    warn,
)
from shmloader.memory.segment import Shape
from shmloader.memory.segment_pool import SegmentPool
from shmloader.options.options import Options
from shmloader.order.order import DrawsFromOrder, Order
from shmloader.processes import ending
from shmloader.trainer import opening
from shmloader.trainer.epoch import CurrentEpoch, Start, length_of
from shmloader.trainer.parts import Parts
from shmloader.trainer.running import Running
from shmloader.trainer.tasks import DataQueue, closed
from shmloader.transport.delivery import error_in
from shmloader.worker import snapshot


class RingIterator(HandsOut, DrawsFromOrder, _Torchs):
    """
    Iterates once over a loader's dataset, or once per epoch with persistent workers.

    Its worker processes write collated batches into the slots of a segment of shared memory.

    Threads take turns: one lock is held by `next()`, by the start of an epoch and by the end. The
    process is checked before the lock, which in a forked child may be held by a thread that is not
    there. `__next__` is `HandsOut`'s, so that no interrupt parts a batch from its count.
    """

    # torch declares queues, an event and processes here; ours only answer like them.
    _index_queues: list[Any]
    _data_queue: Any
    _worker_result_queue: Any
    _workers_done_event: Any
    _worker_queue_idx_cycle: Any
    _base_seed: Any
    _tasks_outstanding: int
    _workers_num_tasks: list[int]

    _may_complain = False  # notes come with answers, and none has said what kept back a state
    _is_behind = False  # fewer requests may be under way than torch asks ahead
    _shutdown = True  # until there is something to shut down: an interrupt may come first
    _is_stepping = False  # in the middle of a next(); an interrupt may leave it True
    _closes = False  # a handler of a signal has closed this in the middle of a next()

    def __init__(
        self,
        loader: Any,
        options: Options,
        pool: SegmentPool,
        shape: Shape,
        order: Order,
        parts: Parts,
    ) -> None:
        """Start the workers and send the first requests."""
        start = Start.now()
        self._generation = generation()
        self._turn = threading.RLock()
        self._hand = InHand()  # the batch that was delivered last
        self._pool, self._order, self.parts = pool, order, parts
        with order.place.as_noted():
            opening.take_arguments(self, loader, options)
            self._running = Running(pool, self._timeout)
            self._shutdown = False
            for made in parts.made:
                made(self, loader)
            self._open(options, shape)
            for opened in parts.opened:
                opened(self._running.tasks)
            self._running.start(self, loader, options)
            self._begin_epoch(loader, start, first_iter=True)

    @property
    def _workers(self) -> list[Any]:  # type: ignore[override]
        """The worker processes, by worker id; without the seats that are not taken."""
        return self._running.processes.there()

    def _open(self, options: Options, shape: Shape) -> None:
        self._running.open(self, options, shape, self.parts)
        self._transport = transport = self._running.transport
        self._delivery = self._running.delivery
        self._index_queues = self._running.orders
        self._data_queue = self._worker_result_queue = DataQueue(lambda: transport.ready)
        self._workers_done_event = self._running.done
        self._may_complain = transport.ledger.progress.publishes and self._pool.untold is None

    # Epochs

    @property
    def is_of_another_process(self) -> bool:
        """True in a forked child of the process that made this iterator."""
        return self._generation != generation()

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if self.is_of_another_process:
            if loader._iterator is not self:
                raise self._running.is_parents()
            # Inherited by a fork: its workers are the parent's, so this process starts its own,
            # which torch's __iter__ returns in place of this one.
            loader._iterator = None
            loader._iterator = loader._get_iterator()
            return
        self._begin_epoch(loader, Start.now(), first_iter)

    def _begin_epoch(self, loader: Any, start: Start, first_iter: bool) -> None:
        with self._turn:
            self._check_turn()
            self._running.wake()
            shared_seed = self._shared_seed  # the workers' in their first epoch
            transport, tasks = self._transport, self._running.tasks
            workers, length = self._num_workers, length_of(loader)
            epoch = CurrentEpoch(loader, tasks.epoch + 1, start, workers, length)
            self._epoch = epoch
            for begin in self.parts.begin:
                begin(epoch)
            self._delivered = epoch.delivered
            tasks.begin_epoch(epoch.delivered)
            self._running.processes.begin_epoch()
            super()._reset(loader, first_iter)
            self._num_yielded += epoch.delivered.count  # to what a library's hooks have set
            epoch.base_seed = int(self._base_seed)
            epoch.shared_seed = shared_seed if first_iter else self._shared_seed
            epoch.snapshots = transport.snapshots if transport.ledger.progress.follows else []
            for begun in self.parts.begun:
                begun(epoch)

    # Answers

    def _is_parents(self) -> RuntimeError:
        return self._running.is_parents()

    def _make(self) -> InHand:
        """Have the next batch in hand, or the error in its place."""
        if self._is_stepping:
            self._check_turn()
        before, self._is_stepping = self._is_stepping, True
        try:
            return self._step()
        finally:
            self._is_stepping = before
            if self._closes:
                self._shutdown_workers()

    def _step(self) -> InHand:
        notes = self._transport.notes
        notes.ask()
        outer, self._hand = self._hand, InHand()  # a signal's handler may ask in the middle of it
        outer.batch = None  # of one that an interrupt has lost
        try:
            self._hand.batch = self._next()
        except BaseException as error:
            if error is not self._hand.error:
                notes.returned()
                if type(error) is StopIteration:
                    self._running.rest(self.parts)
                else:
                    self._is_behind = True
                raise
        finally:
            hand, self._hand = self._hand, outer
        return hand

    def _is_interrupted(self) -> bool:
        """Returns True in what has interrupted a next() of this iterator in this thread."""
        return self._is_stepping and is_within(self, {RingIterator._step.__code__})

    def _check_turn(self) -> None:
        """Raise a RuntimeError in what has interrupted a next() in its middle."""
        if self._is_interrupted():
            raise RuntimeError(
                "a signal handler or a finalizer interrupted a next() of this iterator in this "
                "thread, and requests the next batch or epoch too: only set a flag there, and act "
                "on it between two batches"
            )

    def _next(self) -> Any:
        if self._shutdown and self._rcvd_idx < self._send_idx:
            raise closed()
        if self._pool.advice is not None:
            # No batch is in hand yet that would be lost if warnings are errors.
            advice, self._pool.advice = self._pool.advice, None
            warn(advice, RetentionWarning)
        if self._pool.untold:
            untold, self._pool.untold = self._pool.untold, ""
            warn(untold)
        self._delivery.look()
        for look in self.parts.looks:
            look()
        if self._is_behind and not self._shutdown:
            self._catch_up()
        # torch annotates each batch for its profiler, even without one, which takes as long as all
        # the rest.
        if _profiler_enabled() or self._sampler_iter is None:
            return super(HandsOut, self).__next__()
        length = self._IterableDataset_len_called
        if length is not None and self._num_yielded >= length:
            # Where torch may warn of too many.
            return at_users_line(super(HandsOut, self).__next__)
        data = self._next_data()
        self._num_yielded += 1
        return data

    def _catch_up(self) -> None:
        """Ask for as much as before an interrupt, which may have come before torch had counted."""
        self._task_info.pop(self._send_idx, None)  # it has no number yet, and is put again
        tasks, active = self._task_info.values(), self._workers_status
        # Of a worker at its end torch keeps tasks here that it counts no more.
        self._tasks_outstanding = sum(len(each) == 1 and active[each[0]] for each in tasks)
        asked = Counter(worker for worker, *_ in tasks)
        self._workers_num_tasks[:] = [asked[worker] for worker in range(self._num_workers)]
        depth, sent = self._prefetch_factor * self._num_workers, -1
        while len(self._task_info) < depth and sent < self._send_idx:
            sent = self._send_idx
            self._try_put_index()
        self._is_behind = False

    def _next_data(self) -> Any:
        while True:
            try:
                return _Torchs._next_data(self)
            except EmptyBatch:
                # The user sees neither this one nor a count of it, and states go on behind it.
                self._transport.leave_out()
                self._hand.leave_out()

    def _next_index(self) -> Any:
        return self._delivered.draw_from(self._sampler_iter, self, self._order)

    def _try_put_index(self) -> None:
        if self._epoch.first_worker:
            first, self._epoch.first_worker = self._epoch.first_worker, 0
            in_turn = [*range(first, self._num_workers), *range(first)]
            self._worker_queue_idx_cycle = itertools.cycle(in_turn)
        _Torchs._try_put_index(self)
        # Behind torch's record of the task: an interrupt while it is placed must not lose that.
        self._transport.pump()

    def _get_data(self) -> Any:
        # torch's own would look for its pin thread here; there is none.
        is_bounded = self._timeout > 0
        timeout_s = self._timeout if is_bounded else torch_utils.MP_STATUS_CHECK_INTERVAL
        while True:
            answer = self._take(timeout_s)
            if answer is not None:
                return answer
            if is_bounded:
                why = self._running.processes.explain_hang(self._transport)
                raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds{why}")

    def _try_get_data(
        self, timeout: float = torch_utils.MP_STATUS_CHECK_INTERVAL
    ) -> tuple[bool, Any]:
        # Not torch's own scheduling asks this, but code that was written for torch's iterators.
        answer = self._take(timeout)
        return answer is not None, answer

    def _take(self, timeout_s: float) -> Any:
        """
        Take the next answer; None if it only takes longer.

        Raises:
            RuntimeError: The loader was closed, or workers died.
            WorkerBroken: Which batch it meant cannot be known.
        """
        waiting, active = self._running.waiting, self._workers_status
        wanted = self._rcvd_idx if self._in_order else None
        try:
            return waiting.next_task(timeout_s, self._task_info, wanted, active)
        except WorkerBroken:
            self._shutdown_workers()  # the batch that is waited for might never come
            raise
        except Exception as error:
            if not waiting.may_come_yet(error, active, self._give_up):
                raise
        return None

    def _give_up(self, worker: int) -> None:
        """Note that a worker died and is not replaced."""
        # What it was asked is not known to torch if any worker may be: errors come in those places.
        if not self._transport.requests.is_for_any:
            self._mark_worker_as_unavailable(worker)

    def _process_data(self, data: Any, worker_idx: int) -> Any:
        # Before torch refills: a batch that is spilled frees its slot for the next request.
        if type(data) is Answer:
            answer, notes = data, self._transport.notes
            try:
                data = self._delivery.deliver(answer)
                if answer.log is not None:
                    # Last: copies of later batches put aside notes of their own.
                    notes.take_up(answer.log)
            finally:
                self._transport.received.drop(answer)  # an interrupt loses this batch
            # The worker that answered: torch's record may be of another one.
            worker = worker_idx if answer.worker < 0 else answer.worker
            self._hand = self._delivered.take(answer.key, worker, answer.snapshot, notes)
            if self._may_complain:
                self._look_for_complaint(self._transport.snapshots[worker])
        _Torchs._process_data(self, None, worker_idx)
        if isinstance(data, ExceptionWrapper):
            self._hand.error = error_in(data)
            raise self._hand.error
        return data

    def _look_for_complaint(self, note: bytes | None) -> None:
        """Have the next `next()` say, once for this loader, what kept back a state."""
        if note and (untold := snapshot.untold(note)):
            self._may_complain = False
            if self._pool.untold is None:
                self._pool.untold = untold

    # The end

    def __del__(self) -> None:
        # At interpreter exit there is nothing to do, and what is used here may be None already.
        exiting: Callable[[], bool] | None = _is_exiting
        if exiting is None or exiting():
            return
        try:
            with log.in_finalizer():
                super().__del__()
        except KeyboardInterrupt as interrupt:
            # Python would swallow it here. Of another kind it comes from a handler of user code.
            if type(interrupt) is not KeyboardInterrupt:
                raise
            self._later = ending.InterruptLater()

    def close(self) -> None:
        """End the workers; if this interrupts a next() in its middle, at the end of that."""
        if self._is_interrupted():
            self._running.close_soon()
            self._closes = True
        else:
            self._shutdown_workers()

    def _shutdown_workers(self) -> None:
        # At interpreter exit the workers were ended; in a forked child they are not ours.
        if _is_exiting() or self._shutdown or self._generation != generation():
            return
        self._running.close_soon()
        with self._turn:
            if not self._shutdown:
                self._shutdown = True
                self._running.end(self.parts)


def _is_exiting() -> bool:
    """Returns True once the interpreter exits, even when globals are None already."""
    status = None if torch_utils is None else torch_utils.python_exit_status
    return status is True or status is None

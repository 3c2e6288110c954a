"""
One epoch in the trainer: torch's scheduling over our transport.

The sampler, the order, the credits, the seeds and the errors are torch's own code, inherited. Only
how workers are started and stopped, and how their answers arrive, is replaced.
"""

import itertools
import threading
from collections.abc import Callable
from typing import Any

from torch._utils import ExceptionWrapper
from torch.autograd import _profiler_enabled  # type: ignore[attr-defined]
from torch.utils.data import _utils as torch_utils
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from shmloader import log
from shmloader.core import generation
from shmloader.errors import EmptyBatch, RetentionWarning, WorkerBroken, at_users_line, warn
from shmloader.memory.pool import SegmentPool
from shmloader.memory.segment import Shape
from shmloader.options.record import Options
from shmloader.order.order import Order
from shmloader.processes import ending
from shmloader.stats.setting import DYNAMIC
from shmloader.trainer import opening
from shmloader.trainer.epoch import CurrentEpoch, Start, length_of
from shmloader.trainer.parts import Parts
from shmloader.trainer.queues import DataQueue
from shmloader.trainer.running import Running
from shmloader.trainer.waiting import closed
from shmloader.transport.received import Answer


class RingIterator(_MultiProcessingDataLoaderIter):
    """
    Iterates once over a loader's dataset, or once per epoch with persistent workers.

    Its worker processes write collated batches into the slots of a segment of shared memory.

    Threads take turns: one lock is held by `next()`, by the start of an epoch and by the end. The
    process is checked before the lock, which in a forked child may be held by a thread that is not
    there.
    """

    # torch declares queues, an event and processes here; ours only answer like them.
    _index_queues: list[Any]
    _data_queue: Any
    _worker_result_queue: Any
    _workers_done_event: Any
    _workers: list[Any]
    _worker_queue_idx_cycle: Any
    _base_seed: Any

    _is_error = False  # what is in hand is an error in a batch's place
    _shutdown = True  # until there is something to shut down: an interrupt may come first

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
        # What shutting down needs, before anything can fail.
        self._generation = generation()
        self._turn = threading.RLock()
        self._pool, self._order, self.parts = pool, order, parts
        self._running = Running(pool, loader.timeout)
        self._workers = self._running.processes.by_id
        self._shutdown = False
        with order.place.as_noted():
            opening.take_arguments(self, loader)
            self._is_dynamic = options.assignment == DYNAMIC
            for made in parts.made:
                made(self, loader)
            self._open(options, shape)
            for opened in parts.opened:
                opened(self._running.tasks, self._running.waiting)
            self._running.start(self, loader, options)
            self._begin_epoch(loader, start, first_iter=True)

    @property
    def _index_sampler(self) -> Any:
        return self._order

    @_index_sampler.setter
    def _index_sampler(self, sampler: Any) -> None:
        """torch sets the loader's, which the order draws from."""

    def _open(self, options: Options, shape: Shape) -> None:
        self._running.open(self, options, shape, self.parts)
        self._transport = transport = self._running.transport
        self._way = self._running.way
        self._index_queues = self._running.orders
        self._data_queue = self._worker_result_queue = DataQueue(transport)
        self._workers_done_event = self._running.done

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
            self._running.wake()
            shared_seed = self._shared_seed  # the workers' in their first epoch
            transport, tasks = self._transport, self._running.tasks
            epoch = CurrentEpoch(loader, tasks.epoch + 1, start, length_of(loader))
            self._epoch = epoch
            for begin in self.parts.begin:
                begin(epoch)
            self._delivered = epoch.delivered
            tasks.begin_epoch(epoch.delivered)
            self._running.processes.begin_epoch()
            super()._reset(loader, first_iter)
            self._num_yielded = epoch.delivered.count
            epoch.base_seed = int(self._base_seed)
            epoch.shared_seed = shared_seed if first_iter else self._shared_seed
            epoch.snapshots = transport.snapshots if transport.ledger.progress.follows else []
            for begun in self.parts.begun:
                begun(epoch)

    # Answers

    def __next__(self) -> Any:
        if self._generation != generation():
            raise self._running.is_parents()
        with self._turn:
            notes = self._transport.notes
            notes.ask()
            try:
                batch = self._next()
            except BaseException as error:
                notes.returned()
                if self._is_error:
                    self._delivered.hand_out()  # the error is what came of that batch
                else:
                    self._delivered.put_back()
                if type(error) is StopIteration:
                    self._running.rest(self.parts)
                raise
            # Last: from here on the states of the loader hold this batch as delivered.
            self._delivered.hand_out(notes)
            return batch

    def _next(self) -> Any:
        if self._shutdown and self._rcvd_idx < self._send_idx:
            raise closed()
        if self._pool.advice is not None:
            # No batch is in hand yet that would be lost if warnings are errors.
            advice, self._pool.advice = self._pool.advice, None
            warn(advice, RetentionWarning)
        self._way.look()
        # torch annotates each batch for its profiler, even without one, which takes as long as all
        # the rest.
        if _profiler_enabled() or self._sampler_iter is None:
            return super().__next__()
        length = self._IterableDataset_len_called
        if length is not None and self._num_yielded >= length:
            return at_users_line(super().__next__)  # where torch may warn of too many
        data = self._next_data()
        self._num_yielded += 1
        return data

    def _next_data(self) -> Any:
        while True:
            try:
                return super()._next_data()  # type: ignore[no-untyped-call]
            except EmptyBatch:
                # The user sees neither this one nor a count of it, and states go on behind it.
                self._transport.leave_out()
                self._delivered.hand_out()
                self._is_error = False

    def _next_index(self) -> Any:
        index = next(self._sampler_iter)
        self._delivered.draw(self._send_idx, index, self._order.noted)
        return index

    def _try_put_index(self) -> None:
        if self._is_dynamic:
            # torch takes the first that has more to give and, out of order, may have one more.
            self._worker_queue_idx_cycle = iter(self._transport.requests.by_load())
        elif self._epoch.first_worker:
            first, self._epoch.first_worker = self._epoch.first_worker, 0
            in_turn = [*range(first, self._num_workers), *range(first)]
            self._worker_queue_idx_cycle = itertools.cycle(in_turn)
        super()._try_put_index()
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
                raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds")

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
            if not waiting.may_come_yet(error, active, self._mark_worker_as_unavailable):
                raise
        return None

    def _process_data(self, data: Any, worker_idx: int) -> Any:
        # Before torch refills: a batch that is spilled frees its slot for the next request.
        if isinstance(data, Answer):
            answer = data
            try:
                data = self._way.deliver(answer)
                if answer.log is not None:
                    # Last: copies of later batches put aside notes of their own.
                    self._transport.notes.take_up(answer.log)
            except BaseException:
                # An interrupt loses this batch, but not the next one: torch refills for each.
                super()._process_data(None, worker_idx)  # type: ignore[no-untyped-call]
                raise
            self._delivered.take(answer.key, worker_idx, answer.snapshot)
        self._is_error = isinstance(data, ExceptionWrapper)
        return super()._process_data(data, worker_idx)  # type: ignore[no-untyped-call]

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

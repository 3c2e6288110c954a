"""
One epoch in the trainer: torch's scheduling over our transport.

The sampler, the order, the credits, the seeds and the errors are torch's own code, inherited. Only
how workers are started and stopped, and how their answers arrive, is replaced.
"""

import functools
import itertools
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.autograd import _profiler_enabled  # type: ignore[attr-defined]
from torch.utils.data import IterDataPipe, MapDataPipe
from torch.utils.data import _utils as torch_utils
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _DatasetKind,
    _MultiProcessingDataLoaderIter,
    _sharding_worker_init_fn,
    _share_dist_seed,
)

from shmloader import log
from shmloader.core import Delivered, Progress, generation, pack_request
from shmloader.errors import RetentionWarning, WorkerBroken, at_users_line, warn
from shmloader.memory import shortages
from shmloader.memory.pool import SegmentPool
from shmloader.memory.segment import Segment, Shape
from shmloader.processes import ending
from shmloader.processes.watching import ParentWatch
from shmloader.trainer import planning, ways_out
from shmloader.trainer.budget import reserved_slots
from shmloader.trainer.options import BY_BATCH, DYNAMIC, Options, replaces
from shmloader.trainer.queues import DataQueue, DoneEvent, IndexQueue
from shmloader.trainer.received import PendingBatch
from shmloader.trainer.resuming.generators import Pinned
from shmloader.trainer.resuming.record import Record
from shmloader.trainer.resuming.resumption import Resumption, share_seed
from shmloader.trainer.resuming.samplers import Drawn
from shmloader.trainer.tally import Start, Tally, length_of
from shmloader.trainer.transport import Transport
from shmloader.trainer.waiting import Waiting, closed
from shmloader.trainer.workers import Workers
from shmloader.way_out import Failure, WayOut
from shmloader.worker.loop import WorkerSpec
from shmloader.worker.snapshot import is_stateful


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
    _segment: Segment | None

    _is_error = False  # what is in hand is an error in a batch's place
    _shutdown = True  # until there is something to shut down: an interrupt may come first

    def __init__(
        self,
        loader: Any,
        options: Options,
        pool: SegmentPool,
        shape: Shape,
        resumption: Resumption | None = None,
    ) -> None:
        """Start the workers, or go on from a state, and send the first requests."""
        self._start = Start.now()
        # What shutting down needs, before anything can fail.
        self._generation = generation()
        self._turn = threading.RLock()
        self._segment = None
        self._resumption: Resumption | None = None  # until its epoch has begun
        self._drawn: Drawn | None = None
        self._pool = pool
        self._processes = Workers(loader.timeout)
        self._workers = self._processes.by_id
        self._shutdown = False
        self.record = Record(loader, options)
        if resumption is not None:
            resumption.finish(loader._index_sampler, self.record.stateful, loader.generator)
        pinned = None if resumption is None else resumption.pinned()
        if pinned is not None:
            pinned.enter()
        try:
            begin = functools.partial(_BaseDataLoaderIter.__init__, self, loader)
            has_device = torch.accelerator.is_available() and not loader.pin_memory_device
            if loader.pin_memory and not has_device:
                at_users_line(begin, _BaseDataLoaderIter)  # torch will warn
            else:
                begin()  # without one line more in the traceback of a sampler's error
            self._plan: Iterator[Any] | None = None
            self._first_worker = 0
            self._heals = replaces(options)
            self._is_dynamic = options.assignment == DYNAMIC
            self._is_seeded = options.seed_by == BY_BATCH
            self._publishes = self._has_place and (options.restarts > 0 or options.resumable)
            self._check_arguments(loader)
            if resumption is not None and pinned is not None:
                self._take_over(resumption, pinned, loader)
            with shortages.explained():
                self._open_transport(options, shape)
            self._choose_way(options)
            if resumption is not None and resumption.is_in_epoch:
                self._waiting.replaying.update(resumption.replaying)
            with shortages.explained():
                self._start_workers(loader, options)
            self._reset(loader, first_iter=True)
        finally:
            if pinned is not None and resumption is not None:
                pinned.leave(keeps_draws=not resumption.is_in_epoch)

    def _take_over(self, resumption: Resumption, pinned: Pinned, loader: Any) -> None:
        """Get the seeds and the place in the sampler from a state, before any worker starts."""
        if resumption.keeps_base_seed:
            pinned.rewind()
            self._base_seed = resumption.base_seed(int(self._base_seed))
            if not resumption.is_in_epoch:
                resumption.shared_seed = self._next_shared_seed(loader.generator)
            share_seed(self, resumption.shared_seed)
        resumption.tell_epoch(self._index_sampler)
        self._drawn = resumption.draw(self._index_sampler, self.record.stateful, loader.generator)
        self._resumption = resumption

    def _next_shared_seed(self, generator: torch.Generator | None) -> int | None:
        """Return what torch will draw for the data pipes of the epoch that is about to begin."""
        if not isinstance(self._dataset, IterDataPipe):
            return None
        source = torch.default_generator if generator is None else generator
        before = source.get_state()
        seed = int(_share_dist_seed(generator, self._pg))
        source.set_state(before)
        return seed

    def _check_arguments(self, loader: Any) -> None:
        self._prefetch_factor = loader.prefetch_factor
        self._in_order = loader.in_order
        self._worker_init_fn = loader.worker_init_fn
        if self._num_workers <= 0:
            raise AssertionError(
                "num_workers must be greater than 0 for MultiProcessingDataLoaderIter"
            )
        if self._prefetch_factor <= 0:
            raise AssertionError(
                "prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter"
            )
        if isinstance(self._dataset, (IterDataPipe, MapDataPipe)):
            self._worker_init_fn = functools.partial(
                _sharding_worker_init_fn, self._worker_init_fn, self._world_size, self._rank
            )

    @property
    def _has_place(self) -> bool:
        """Returns True if what a worker answers depends on what it has answered before."""
        is_map = self._dataset_kind == _DatasetKind.Map
        return not (is_map and self._is_seeded) or is_stateful(self._dataset)

    def _open_transport(self, options: Options, shape: Shape) -> None:
        segment = self._pool.acquire(shape)
        in_flight = int(self._prefetch_factor) * shape.workers
        self._transport = Transport(
            segment,
            reserved_slots(in_flight, shape.workers, shape.slots),
            self._pool,
            heals=self._heals,
            is_iterable=self._dataset_kind == _DatasetKind.Iterable,
            is_seeded=self._is_seeded,
            publishes=self._publishes,
            follows=options.resumable,
            grows=options.slots is None,
        )
        self._gives_back = not self._pool.keeps_pages
        self._notes = self._transport.notes
        spills = self._transport.budget.spills
        pids = self._processes.pids
        self._tally = Tally(self._pool, self._transport.ledger, self._notes, spills, pids)
        self._index_queues = [IndexQueue(self._transport, i) for i in range(self._num_workers)]
        self._data_queue = self._worker_result_queue = DataQueue(self._transport)
        self._workers_done_event = DoneEvent(self._transport)
        if options.slot_bytes is not None:
            self._transport.ledger.expect(options.slot_bytes)
        self._way: WayOut = ways_out.PlainWay(self._transport.received)  # until one is chosen
        self._waiting = Waiting(self._transport, self._processes, self._way)
        # Last: an iterator that has a segment has all that it takes to give it back.
        self._segment = segment

    def _choose_way(self, options: Options) -> None:
        self._way = ways_out.choose(
            options,
            self._transport,
            self._pool,
            in_order=self._in_order,
            pins=self._pin_memory,
            pin_device=self._pin_memory_device,
        )
        self._waiting = Waiting(self._transport, self._processes, self._way)

    def _start_workers(self, loader: Any, options: Options) -> None:
        assert self._segment is not None, "the transport is open"
        resumption = self._resumption
        spec = WorkerSpec(
            parent=ParentWatch(os.getpid()),
            worker_id=0,
            num_workers=self._num_workers,
            dataset_kind=self._dataset_kind,
            dataset=self._dataset,
            auto_collation=self._auto_collation,
            collate_fn=self._collate_fn,
            drop_last=self._drop_last,
            base_seed=self._base_seed,
            worker_init_fn=self._worker_init_fn,
            shared_seed=self._shared_seed,
            handle=self._segment.handle(),
            signal_mask={*signal.pthread_sigmask(signal.SIG_BLOCK, ())},
            publishes=self._publishes,
            is_seeded=self._is_seeded,
            fetch_threads=options.fetch_threads,
            nice=options.nice,
            worker_bytes=options.worker_bytes,
        )
        context = loader.multiprocessing_context or torch.multiprocessing
        progress: list[Progress | None] = [None] * self._num_workers
        if resumption is not None:
            progress = resumption.progress()
            self._transport.resume(resumption.epoch_before, resumption.latest())
        self._processes.start(context, spec, self._transport, options.restarts, progress)
        self.record.base_seed = int(self._base_seed)

    # Epochs

    @property
    def is_of_another_process(self) -> bool:
        """True in a forked child of the process that made this iterator."""
        return self._generation != generation()

    def _check_owner(self) -> None:
        if self._generation != generation():
            raise RuntimeError(
                f"this iterator and its workers belong to process {self._processes.owner_pid}, "
                f"from which this process ({os.getpid()}) was forked: call iter(loader) here, "
                "which starts workers of this process"
            )

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if self.is_of_another_process and loader._iterator is self:
            # Inherited by a fork: its workers are the parent's, so this process starts its own,
            # which torch's __iter__ returns in place of this one.
            loader._iterator = None
            loader._iterator = loader._get_iterator()
            return
        self._check_owner()
        start = self._start if first_iter else Start.now()
        with self._turn:
            assert self._segment is not None, "an iterator is reset before its end"
            self._pool.wake(self._segment)
            resumption, self._resumption = self._resumption, None
            shared_seed = self._shared_seed  # the workers' in their first epoch
            self._begin_record(resumption)
            self._transport.begin_epoch(self._delivered)
            self._processes.begin_epoch()
            self._tally.begin(length_of(loader), self._delivered.count, start)
            self._is_watched = False
            drawn, self._drawn = self._drawn, None
            sampler = self._index_sampler
            if drawn is None:
                self._plan = planning.plan(sampler)
            else:
                self._plan = None
                self._index_sampler = drawn  # of which torch takes the iterator just here
            try:
                super()._reset(loader, first_iter)
            finally:
                self._index_sampler = sampler
            self._enter_record(resumption, shared_seed if first_iter else self._shared_seed)

    def _begin_record(self, resumption: Resumption | None) -> None:
        """Note what the epoch's indices are drawn from, just before its sampler is iterated."""
        record = self.record
        is_numbered = self._dataset_kind == _DatasetKind.Map
        if resumption is None:
            self._delivered = Delivered(self._num_workers, is_numbered)
        else:
            self._delivered = resumption.delivered(self._num_workers, record.stateful)
            self._first_worker = resumption.first_worker
        if resumption is None or not resumption.is_in_epoch:
            record.begin(self._delivered, self._transport.epoch + 1)
        else:
            record.go_on(resumption.state, self._delivered)

    def _enter_record(self, resumption: Resumption | None, shared_seed: int | None) -> None:
        """Note where the workers are now that all have begun the epoch."""
        record, snapshots = self.record, self._transport.snapshots
        record.published = snapshots if self._transport.ledger.follows else []
        record.shared_seed = -1 if shared_seed is None else int(shared_seed)
        if resumption is not None and resumption.is_in_epoch:
            record.begun = resumption.begun()
            self._num_yielded = self._delivered.count
        else:
            record.begun = list(snapshots)

    # Answers

    def __next__(self) -> Any:
        if self._generation != generation():
            self._check_owner()
        with self._turn:
            self._notes.ask()
            try:
                batch = self._next()
            except BaseException as error:
                self._notes.hand_out()
                if self._is_error:
                    self._delivered.hand_out()  # the error is what came of that batch
                else:
                    self._delivered.put_back()
                if type(error) is StopIteration:
                    self.record.is_over = True
                    if self._segment is not None:
                        if self._gives_back:
                            self._way.rest()
                        self._pool.rest(self._segment)
                        self._tally.end()
                    self._way.end_epoch()
                raise
            self._notes.hand_out(self._delivered)
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
        data = self._next_data()  # type: ignore[no-untyped-call]
        self._num_yielded += 1
        return data

    def _next_index(self) -> Any:
        plan = self._plan
        if plan is not None:
            index = next(plan)
            self._delivered.draw(self._send_idx, index)
            return index
        if not self._is_watched:
            self._watch_sampler()
        # As planned ones: packed here instead of when it is placed, and the checksum costs little.
        index = pack_request(super()._next_index())  # type: ignore[no-untyped-call]
        self._delivered.draw(self._send_idx, index, self.record.stateful.state(index))
        return index

    def _watch_sampler(self) -> None:
        """Find out if the sampler's iterator has a state, before anything is drawn from it."""
        self._is_watched = True
        stateful = self.record.stateful
        iterator: Any = self._sampler_iter
        stateful.watch(iterator.iterator if type(iterator) is Drawn else iterator)
        if stateful.is_here and self._delivered.sampler is None:
            self._delivered.start(stateful.state())

    def _try_put_index(self) -> None:
        if self._is_dynamic:
            # torch takes the first that has more to give and, out of order, may have one more.
            self._worker_queue_idx_cycle = iter(self._transport.requests.by_load())
        elif self._first_worker:
            first, self._first_worker = self._first_worker, 0
            in_turn = [*range(first, self._num_workers), *range(first)]
            self._worker_queue_idx_cycle = itertools.cycle(in_turn)
        super()._try_put_index()
        # Behind torch's record of the task: an interrupt while it is placed must not lose that.
        self._transport.pump()

    def _get_data(self) -> Any:
        # torch's own would look for its pin thread here; there is none.
        is_bounded = self._timeout > 0 and not self._waiting.replaying
        timeout_s = self._timeout if is_bounded else torch_utils.MP_STATUS_CHECK_INTERVAL
        wanted = self._rcvd_idx if self._in_order else None
        while True:
            try:
                return self._waiting.take(timeout_s, self._task_info, wanted, self._workers_status)
            except Exception as error:
                if not self._may_come_yet(error):
                    raise
            if is_bounded:
                raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds")

    def _try_get_data(
        self, timeout: float = torch_utils.MP_STATUS_CHECK_INTERVAL
    ) -> tuple[bool, Any]:
        # Not torch's own scheduling asks this, but code that was written for torch's iterators.
        wanted = self._rcvd_idx if self._in_order else None
        try:
            return True, self._waiting.take(timeout, self._task_info, wanted, self._workers_status)
        except Exception as error:
            if self._may_come_yet(error):
                return False, None
            raise

    def _may_come_yet(self, error: Exception) -> bool:
        """
        Returns True if an answer only takes longer, False if the error says why none comes.

        Raises:
            RuntimeError: The loader was closed, or workers died.
        """
        if isinstance(error, WorkerBroken):
            # Which batch it meant cannot be known, so the one waited for might never come.
            self._shutdown_workers()
            return False
        if self._waiting.is_closing:
            raise closed() from None
        self._raise_if_workers_died(error)
        return isinstance(error, queue.Empty)

    def _raise_if_workers_died(self, error: Exception) -> None:
        if self._processes.heal_all(self._workers_status):
            return
        dead = self._processes.dead(self._workers_status)
        explained = self._processes.explain(dead)
        for worker_id in dead:
            self._mark_worker_as_unavailable(worker_id)
            self._transport.forget_worker(worker_id)
        if explained:
            raise RuntimeError(explained) from error
        if dead:
            pids = ", ".join(str(self._workers[worker_id].pid) for worker_id in dead)
            raise RuntimeError(f"DataLoader worker (pid(s) {pids}) exited unexpectedly") from error

    def _process_data(self, data: Any, worker_idx: int) -> Any:
        # Before torch refills: a batch that is spilled frees its slot for the next request.
        if isinstance(data, PendingBatch):
            pending = data
            try:
                data = self._way.deliver(pending)
                if pending.note is not None:
                    # Last: copies of later batches put aside notes of their own.
                    self._notes.take_up(pending.note)
            except BaseException:
                # An interrupt loses this batch, but not the next one: torch refills for each.
                super()._process_data(None, worker_idx)  # type: ignore[no-untyped-call]
                raise
            self._delivered.take(pending.number, worker_idx, pending.snapshot)
        elif isinstance(data, Failure) and data.number is not None:
            self._delivered.take(data.number, worker_idx)
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
        if self._segment is not None:
            # A next() on another thread ends within a slice, and with it that thread's turn.
            self._waiting.is_closing = True
        with self._turn:
            if not self._shutdown:
                self._shutdown = True
                self._end()

    def _end(self) -> None:
        try:
            # A worker that dies while it leaves is no news, least of all inside a __del__.
            self._processes.unwatch()
            self._stop_workers()
        finally:
            were_reaped = self._processes.end()
            self._return_segment(were_reaped)

    def _stop_workers(self) -> None:
        if self._segment is None:
            return
        self._tally.end()  # while the workers can still be asked what they ran
        self._workers_done_event.set()
        for worker_id in range(len(self._workers)):
            self._index_queues[worker_id].put(None)
        self._processes.leave()

    def _return_segment(self, workers_were_reaped: bool) -> None:
        """Keep the segment if every worker that could write to it was reaped."""
        segment, self._segment = self._segment, None
        if segment is None:
            return
        self._transport.close()
        # Before the pool may give pages back, or lend them to workers of the next epoch.
        may_be_used_again = self._way.close()
        if workers_were_reaped and may_be_used_again:
            self._pool.release(segment)
        else:
            self._pool.discard(segment)


def _is_exiting() -> bool:
    """Returns True once the interpreter exits, even when globals are None already."""
    status = None if torch_utils is None else torch_utils.python_exit_status
    return status is True or status is None

"""
One epoch in the trainer: torch's scheduling over our transport.

The sampler, the order, the credits, the seeds and the errors are torch's own code, inherited. What
is replaced is how workers are started, how their answers arrive, and how they are stopped.
"""

import contextlib
import functools
import os
import queue
import signal
import threading
import time
import warnings
from dataclasses import replace
from pickle import PicklingError
from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import IterDataPipe, MapDataPipe
from torch.utils.data import _utils as stock
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _DatasetKind,
    _MultiProcessingDataLoaderIter,
    _sharding_worker_init_fn,
)

from shmloader.errors import WorkerBroken
from shmloader.memory import forks
from shmloader.processes import ending as exits
from shmloader.processes import starting as processes
from shmloader.processes.nursery import Nursery
from shmloader.trainer.healing import Healer
from shmloader.trainer.queues import DataQueue, DoneEvent, IndexQueue
from shmloader.trainer.transport import Parcel, Transport
from shmloader.worker import loop as worker
from shmloader.worker import replacement

# Longest park of the trainer before it looks whether its workers live; within this a death shows.
_SLICE_S = 0.1


class RingIterator(_MultiProcessingDataLoaderIter):
    """
    Iterates once over a loader's dataset, or once per epoch with persistent workers.

    Its worker processes write collated batches into the slots of a segment of shared memory.
    """

    # torch declares queues, an event and processes here; ours only answer like them.
    _index_queues: list[Any]
    _data_queue: Any
    _worker_result_queue: Any
    _workers_done_event: Any
    _workers: list[Any]
    _base_seed: Any
    _segment: Any

    def __init__(self, loader, shelf):
        """
        Start the workers and send the first requests.

        Args:
            shelf: Where the loader keeps its segments between epochs.
        """
        # What shutting down needs, before anything can fail.
        self._owner_pid = os.getpid()
        self._shutdown = False
        self._worker_pids_set = False
        self._workers = []
        self._segment = None
        self._nursery = None
        self._healer = None
        self._looked_at = time.monotonic()
        self._all_started = False
        self._shelf = shelf
        exits.watch(self)
        _BaseDataLoaderIter.__init__(self, loader)
        self._check_arguments(loader)
        self._open_transport(loader)
        self._start_workers(loader)
        self._watch_workers()
        self._reset(loader, first_iter=True)

    def _check_arguments(self, loader):
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

    def _open_transport(self, loader):
        shape = loader._segment_shape()
        self._segment = self._shelf.take(shape)
        self._transport = Transport(
            self._segment,
            self._reserved_slots(shape.slots),
            self._shelf,
            recalls=loader.restarts > 0,
            is_iterable=self._dataset_kind == _DatasetKind.Iterable,
        )
        self._index_queues = [IndexQueue(self._transport, i) for i in range(self._num_workers)]
        self._data_queue = self._worker_result_queue = DataQueue(self._transport)
        self._workers_done_event = DoneEvent(self._transport)
        if loader.slot_bytes is not None:
            self._transport.ledger.expect(loader.slot_bytes)

    def _reserved_slots(self, slots):
        """How many slots stay unleased: all that torch would have in flight, if there are more."""
        in_flight = self._prefetch_factor * self._num_workers
        return min(in_flight, max(slots - 2, min(self._num_workers, slots)))

    def _start_workers(self, loader):
        context = loader.multiprocessing_context or torch.multiprocessing
        assignment = self._assignment(loader)
        if loader.restarts > 0:
            self._open_nursery(context, assignment, loader.restarts)
        for worker_id in range(self._num_workers):
            process = context.Process(
                target=worker.run,
                args=(replace(assignment, worker_id=worker_id),),
            )
            process.daemon = True
            with forks.ours():
                self._start(functools.partial(processes.start, process))
            self._workers.append(process)
        self._all_started = True

    def _open_nursery(self, context, assignment, restarts):
        # Known before it starts: an interrupt must not leave one that nobody ends.
        self._nursery = Nursery(context, assignment, replacement.run)
        with forks.ours():
            self._start(self._nursery.start)
        self._transport.ledger.share_seed(assignment.shared_seed)
        self._healer = Healer(self._transport, self._nursery, self._workers, restarts)

    def _assignment(self, loader):
        return worker.Assignment(
            trainer=worker.Trainer(self._owner_pid),
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
            signal_mask=signal.pthread_sigmask(signal.SIG_BLOCK, ()),
            publishes=loader.restarts > 0,
        )

    def _start(self, start):
        try:
            return start()
        except (TypeError, AttributeError, PicklingError):
            warnings.warn(
                "Got pickle error when attempting to start a worker Process: the dataset, "
                "collate_fn and worker_init_fn are pickled for the start methods spawn and "
                "forkserver. Define them at module level, or use multiprocessing_context='fork'.",
                stacklevel=2,
            )
            raise

    def _watch_workers(self):
        """Let torch's handler of SIGCHLD raise when a worker dies that nobody replaces."""
        if self._healer is not None:
            return
        pids = tuple(process.pid for process in self._workers)
        # Before the call: an interrupt between the two must not leave the pids set for ever.
        self._worker_pids_set = True
        stock.signal_handling._set_worker_pids(id(self), pids)
        stock.signal_handling._set_SIGCHLD_handler()

    # Epochs

    def _reset(self, loader, first_iter=False):
        self._transport.begin_epoch()
        if self._healer is not None:
            self._healer.begin_epoch()
        super()._reset(loader, first_iter)

    # Answers

    def __next__(self):
        # torch annotates each batch for its profiler, also while there is none, which takes as long
        # as all the rest.
        if torch.autograd._profiler_enabled() or self._sampler_iter is None:
            return super().__next__()
        length = self._IterableDataset_len_called
        if length is not None and self._num_yielded >= length:
            return self._next_beyond_length()
        data = self._next_data()
        self._num_yielded += 1
        return data

    def _next_beyond_length(self):
        """Have torch warn of more batches than the dataset said, at the line that iterates."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            data = super().__next__()
        for warning in caught:
            warnings.warn(warning.message, stacklevel=3)
        return data

    def _get_data(self):
        # torch's own would look for its pin thread here; there is none.
        if self._timeout > 0:
            success, data = self._try_get_data(self._timeout)
            if not success:
                raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds")
            return data
        while True:
            success, data = self._try_get_data()
            if success:
                return data

    def _try_get_data(self, timeout=stock.MP_STATUS_CHECK_INTERVAL):
        try:
            return True, self._wait_for_answer(timeout)
        except WorkerBroken:
            # Which batch it meant cannot be known, so the one waited for might never come.
            self._shutdown_workers()
            raise
        except Exception as error:
            self._raise_if_workers_died(error)
            if isinstance(error, queue.Empty):
                return False, None
            raise

    def _wait_for_answer(self, timeout_s):
        """Receive the next answer; queue.Empty: none came in time, or a worker is dead."""
        deadline = None
        while True:
            if self._heal_now_and_then():
                deadline = None
            wanted = self._rcvd_idx if self._in_order else None
            answer = self._transport.receive(self._task_info, wanted, self._workers_status)
            if answer is not None:
                return answer
            now = time.monotonic()
            deadline = now + timeout_s if deadline is None else deadline
            if now >= deadline:
                if not self._end_hung_worker():
                    raise queue.Empty
                deadline = None
                continue
            self._transport.wait(min(deadline - now, _SLICE_S), self._task_info)
            if not self._transport.has_news and (dead := self._dead_workers()):
                awaited = self._transport.awaited_worker()
                if not self._heal_all():
                    raise queue.Empty
                # Deaths of others are no reason to wait longer for the one that owes an answer.
                if awaited is None or awaited in dead:
                    deadline = None

    def _heal_now_and_then(self):
        """Replace who died, also while batches are ready; whether one of them was waited for."""
        now = time.monotonic()
        if self._healer is None or now - self._looked_at < _SLICE_S:
            return False
        self._looked_at = now
        awaited, dead = self._transport.awaited_worker(), self._dead_workers()
        return bool(dead) and self._heal_all() and awaited in dead

    def _heal_all(self):
        """Replace every worker that died; whether none is left that cannot be."""
        for worker_id in self._dead_workers():
            if self._healer is None or not self._healer.can_heal(worker_id):
                return False
            self._healer.heal(worker_id)
        return True

    def _end_hung_worker(self):
        """Replace the worker whose answer was waited for too long, if there is a timeout."""
        if self._timeout <= 0 or self._healer is None:
            return False
        worker_id = self._transport.awaited_worker()
        if worker_id is None or not self._healer.can_heal(worker_id):
            return False
        process = self._workers[worker_id]
        if process.pid is None:
            # A replacement of which its nursery says nothing, although it was waited for.
            return False
        process.kill()
        process.join(processes.LEAVE_S)
        if process.is_alive():
            # Such as one in a system call that no signal ends: it may still write to its slots.
            return False
        self._healer.heal(worker_id, f"was killed after it hung for timeout={self._timeout} s")
        return True

    def _dead_workers(self):
        dead = [
            worker_id
            for worker_id, process in enumerate(self._workers)
            if self._workers_status[worker_id] and not process.is_alive()
        ]
        # Workers that end with the interpreter are no news for a thread that ends with it too.
        if exits.has_begun() and threading.current_thread() is not threading.main_thread():
            return []
        return dead

    def _raise_if_workers_died(self, error):
        if self._heal_all():
            return
        dead = self._dead_workers()
        explained = self._healer.explain(dead[0]) if self._healer and dead else None
        for worker_id in dead:
            self._mark_worker_as_unavailable(worker_id)
            self._transport.forget_worker(worker_id)
        if explained:
            raise RuntimeError(explained) from error
        if dead:
            pids = ", ".join(str(self._workers[worker_id].pid) for worker_id in dead)
            raise RuntimeError(f"DataLoader worker (pid(s) {pids}) exited unexpectedly") from error

    def _process_data(self, data, worker_idx):
        # Before torch refills: a batch that is spilled frees its slot for the next request.
        if isinstance(data, Parcel):
            try:
                data = self._transport.deliver(data)
            except BaseException:
                # An interrupt loses this batch, but not the next one: torch refills for each.
                super()._process_data(None, worker_idx)
                raise
            if self._pin_memory:
                data = self._pin(data)
        return super()._process_data(data, worker_idx)

    def _pin(self, batch):
        """Copy a batch once into torch's pinned allocator; its slot is free when the views die."""
        if isinstance(batch, ExceptionWrapper):
            return batch
        try:
            return stock.pin_memory.pin_memory(batch, self._pin_memory_device)
        except Exception:
            device = torch.accelerator.current_device_index()
            return ExceptionWrapper(where=f"in pin memory thread for device {device}")

    # The end

    def __del__(self):
        try:
            super().__del__()
        except KeyboardInterrupt as interrupt:
            # Python would swallow it here. One of another kind comes from a handler of the user's.
            if type(interrupt) is not KeyboardInterrupt:
                raise
            self._later = exits.InterruptLater()

    @property
    def owner_pid(self):
        """The process that made this iterator."""
        return self._owner_pid

    def processes(self):
        """All that runs for this iterator: its workers, and who replaces them."""
        return self._workers + ([self._nursery] if self._nursery else [])

    def _shutdown_workers(self):
        # At interpreter exit the workers were ended; in a forked child they are not ours.
        if stock is None or stock.python_exit_status is True or stock.python_exit_status is None:
            return
        if self._shutdown or self._owner_pid != os.getpid():
            return
        self._shutdown = True
        try:
            # A worker that dies while it leaves is no news, least of all inside a __del__.
            self.unwatch_workers()
            self._stop_workers()
        finally:
            self._end_workers()
            self._return_segment()

    def _stop_workers(self):
        if self._segment is None:
            return
        self._workers_done_event.set()
        for worker_id in range(len(self._workers)):
            self._index_queues[worker_id].put(None)
        # One deadline for all, not one for each as in torch.
        processes.join_all(self._workers, processes.LEAVE_S)

    def unwatch_workers(self):
        """Let torch's handler of SIGCHLD take no notice of these workers any more."""
        if self._worker_pids_set:
            with contextlib.suppress(ValueError):  # interrupted before they were set, or below
                stock.signal_handling._remove_worker_pids(id(self))
            # Last, or an interrupt would leave them to the next iterator that has this id.
            self._worker_pids_set = False

    def _end_workers(self):
        self.unwatch_workers()
        try:
            processes.end_all(self._workers)
        finally:
            if self._nursery is not None:
                self._all_started = self._nursery.close() and self._all_started

    def _return_segment(self):
        """Keep the segment if every worker that could write to it was reaped."""
        segment, self._segment = self._segment, None
        if segment is None:
            return
        self._transport.close()
        # An interrupt in the middle of a start leaves a process that nobody here knows.
        if not self._all_started or any(process.is_alive() for process in self._workers):
            self._shelf.abandon(segment)
        else:
            self._shelf.give_back(segment)

"""
One epoch in the trainer: torch's scheduling over our transport.

The sampler, the order, the credits, the seeds and the errors are torch's own code, inherited. What
is replaced is how workers are started, how their answers arrive, and how they are stopped.
"""

import atexit
import contextlib
import functools
import multiprocessing.util  # noqa: F401  registers its own handler of exit
import os
import queue
import signal
import time
import warnings
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

from shmloader import forks, worker
from shmloader.errors import WorkerBroken
from shmloader.transport import Parcel, Transport

# Longest park of the trainer before it looks whether its workers live; within this a death shows.
_SLICE_S = 0.1
_JOIN_S = stock.MP_STATUS_CHECK_INTERVAL


class _Exit:
    # Handlers run last in, first out: registered after multiprocessing's, this one runs before it.
    has_begun = False

    def begin(self):
        self.has_begun = True


_exit = _Exit()
atexit.register(_exit.begin)


@contextlib.contextmanager
def _without_interrupts():
    # A new process inherits this and lets interrupts in once it can keep quiet about them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _IndexQueue:
    """What torch knows as a worker's index queue."""

    def __init__(self, transport, worker_id):
        self._transport = transport
        self._worker_id = worker_id

    def put(self, message):
        """Send a task, a resume, or None."""
        self._transport.put(self._worker_id, message)

    def qsize(self):
        """How many messages the worker has not taken yet."""
        return self._transport.untaken(self._worker_id)

    def empty(self):
        """Whether the worker has taken all messages."""
        return self.qsize() == 0


class _DataQueue:
    """What torch knows as the result queue, for code that asks how full it is."""

    def __init__(self, transport):
        self._transport = transport

    def qsize(self):
        """How many answers wait for the trainer."""
        return self._transport.ready

    def empty(self):
        """Whether no answer waits for the trainer."""
        return self.qsize() == 0


class _DoneEvent:
    """What torch knows as the event that tells workers to leave."""

    def __init__(self, transport):
        self._transport = transport
        self._is_set = False

    def is_set(self):
        """Whether the workers were told to leave."""
        return self._is_set

    def set(self):
        """Tell the workers to leave as soon as they look."""
        self._is_set = True
        self._transport.ledger.stop()


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
        self._all_started = False
        self._shelf = shelf
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
            is_iterable=self._dataset_kind == _DatasetKind.Iterable,
        )
        self._index_queues = [_IndexQueue(self._transport, i) for i in range(self._num_workers)]
        self._data_queue = self._worker_result_queue = _DataQueue(self._transport)
        self._workers_done_event = _DoneEvent(self._transport)
        if loader.slot_bytes is not None:
            self._transport.ledger.expect(loader.slot_bytes)

    def _reserved_slots(self, slots):
        """How many slots stay unleased: all that torch would have in flight, if there are more."""
        in_flight = self._prefetch_factor * self._num_workers
        return min(in_flight, max(slots - 2, min(self._num_workers, slots)))

    def _start_workers(self, loader):
        context = loader.multiprocessing_context or torch.multiprocessing
        handle = self._segment.handle()
        for worker_id in range(self._num_workers):
            process = context.Process(
                target=worker.run, args=(self._assignment(worker_id, handle),)
            )
            process.daemon = True
            with forks.ours(), _without_interrupts():
                self._start(process)
            self._workers.append(process)
        self._all_started = True

    def _assignment(self, worker_id, handle):
        return worker.Assignment(
            worker_id=worker_id,
            num_workers=self._num_workers,
            dataset_kind=self._dataset_kind,
            dataset=self._dataset,
            auto_collation=self._auto_collation,
            collate_fn=self._collate_fn,
            drop_last=self._drop_last,
            base_seed=self._base_seed,
            worker_init_fn=self._worker_init_fn,
            shared_seed=self._shared_seed,
            handle=handle,
            trainer_pid=self._owner_pid,
            trainer_started=worker.start_time(self._owner_pid),
            signal_mask=signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        )

    def _start(self, process):
        try:
            process.start()
        except (TypeError, AttributeError, PicklingError):
            warnings.warn(
                "Got pickle error when attempting to start a worker Process: the dataset, "
                "collate_fn and worker_init_fn are pickled for the start methods spawn and "
                "forkserver. Define them at module level, or use multiprocessing_context='fork'.",
                stacklevel=2,
            )
            raise

    def _watch_workers(self):
        """Let torch's handler of SIGCHLD raise when a worker dies."""
        pids = tuple(process.pid for process in self._workers)
        # Before the call: an interrupt between the two must not leave the pids set for ever.
        self._worker_pids_set = True
        stock.signal_handling._set_worker_pids(id(self), pids)
        stock.signal_handling._set_SIGCHLD_handler()

    # Epochs

    def _reset(self, loader, first_iter=False):
        self._transport.begin_epoch()
        super()._reset(loader, first_iter)

    # Answers

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
            answer = self._transport.receive(
                self._task_info, self._rcvd_idx if self._in_order else None
            )
            if answer is not None:
                return answer
            now = time.monotonic()
            deadline = now + timeout_s if deadline is None else deadline
            if now >= deadline:
                raise queue.Empty
            self._transport.wait(min(deadline - now, _SLICE_S), self._task_info)
            if not self._transport.has_news and self._dead_workers():
                raise queue.Empty

    def _dead_workers(self):
        dead = [
            worker_id
            for worker_id, process in enumerate(self._workers)
            if self._workers_status[worker_id] and not process.is_alive()
        ]
        # multiprocessing ends its daemons at exit, which is no news for a thread that waits.
        return [] if _exit.has_begun else dead

    def _raise_if_workers_died(self, error):
        dead = self._dead_workers()
        for worker_id in dead:
            self._mark_worker_as_unavailable(worker_id)
            self._transport.forget_worker(worker_id)
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

    def _shutdown_workers(self):
        # At interpreter exit multiprocessing ends daemons; in a forked child they are not ours.
        if stock is None or stock.python_exit_status is True or stock.python_exit_status is None:
            return
        if self._shutdown or self._owner_pid != os.getpid():
            return
        self._shutdown = True
        try:
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
        deadline = time.monotonic() + _JOIN_S
        for process in self._workers:
            process.join(timeout=max(0.0, deadline - time.monotonic()))

    def _end_workers(self):
        if self._worker_pids_set:
            self._worker_pids_set = False
            with contextlib.suppress(ValueError):  # interrupted before they were set
                stock.signal_handling._remove_worker_pids(id(self))
        for end in (lambda process: process.terminate(), lambda process: process.kill()):
            for process in self._workers:
                if process.is_alive():
                    end(process)
                    process.join(timeout=_JOIN_S)

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

"""What an iterator has running, opened and ended together: segment, workers, delivery."""

import os
from typing import Any

import torch
from torch.utils.data import _DatasetKind

from shmloader.memory import shortages
from shmloader.memory.segment import Segment, Shape
from shmloader.memory.segment_pool import SegmentPool
from shmloader.options.options import BY_BATCH, Options
from shmloader.pinning.host_delivery import PlainDelivery
from shmloader.setup.components import has_component
from shmloader.trainer import deliveries, opening
from shmloader.trainer.client import LoaderClient
from shmloader.trainer.parts import Parts
from shmloader.trainer.tally import Tally
from shmloader.trainer.tasks import BatchWait, DoneEvent, IndexQueue, Tasks
from shmloader.transport.delivery import Delivery
from shmloader.transport.transport import Transport
from shmloader.transport.workers import Workers

if has_component("autoscaling"):
    from shmloader.autoscaling.autoscaler import Autoscaler

_FIRST_WORKERS = 2  # of num_workers="auto", where nothing is known yet


class Running:
    """All that has to end with an iterator, however far it has come."""

    # There once the segment is.
    transport: Transport
    tasks: Tasks
    delivery: Delivery
    waiting: BatchWait
    orders: list[IndexQueue]  # what torch knows as the workers' index queues
    done: DoneEvent  # what torch knows as the event that tells workers to leave

    def __init__(self, pool: SegmentPool, timeout_s: float) -> None:
        self.segment: Segment | None = None  # before it is open, and after its end
        self.processes = Workers(timeout_s)
        self._pool = pool

    def is_parents(self) -> RuntimeError:
        """Say, in a forked child, that the workers are not its own."""
        return RuntimeError(
            f"this iterator and its workers belong to process {self.processes.owner_pid}, from "
            f"which this process ({os.getpid()}) was forked: call iter(loader) in this process, "
            "which starts its own workers"
        )

    def open(self, iterator: Any, options: Options, shape: Shape, parts: Parts) -> None:
        """Open a segment, and what torch knows as queues over it."""
        with shortages.explained():
            segment = self._pool.acquire(shape)
            self.transport = opening.transport_over(iterator, segment, self._pool, options)
            self.delivery = PlainDelivery(self.transport.received)  # until one is chosen
            self.tasks = Tasks(
                self.transport,
                is_iterable=iterator._dataset_kind == _DatasetKind.Iterable,
                is_seeded=options.seed_by == BY_BATCH,
                is_bound=not options.binds_late,
            )
            self.waiting = BatchWait(self.tasks, self.transport, self.processes, self.delivery)
            self.done = DoneEvent(self.transport)
            self.orders = [IndexQueue(self.tasks, self.transport, i) for i in range(shape.workers)]
            parts.add(Tally(self._pool, self.transport, self.processes.pids))
            if options.max_workers is not None:
                least = options.min_workers or 1
                limits = self._pool, least, options.max_workers
                parts.add(Autoscaler(self.transport, self.processes, *limits))
            # Last: an iterator that has a segment has all that it takes to give it back.
            self.segment = segment
        self.delivery = self._delivery_of(iterator, options, parts)
        self.waiting = BatchWait(self.tasks, self.transport, self.processes, self.delivery)

    def _delivery_of(self, iterator: Any, options: Options, parts: Parts) -> Delivery:
        if parts.delivery:
            delivery: Delivery = parts.delivery[0](self.transport)
            return delivery
        return deliveries.choose(
            options,
            self.transport,
            self._pool,
            in_order=iterator._in_order,
            pins=iterator._pin_memory,
            pin_device=iterator._pin_memory_device,
        )

    def start(self, iterator: Any, loader: Any, options: Options) -> None:
        """Start the workers."""
        assert self.segment is not None, "it is open"
        with shortages.explained():
            spec = opening.spec_of(iterator, options, self.segment.handle())
            context = loader.multiprocessing_context or torch.multiprocessing
            client = LoaderClient(spec, opening.preload_of(context, options))
            begin = self._workers_at_first(loader, options)
            self.processes.start(context, client, self.transport, options.restarts, begin)

    def _workers_at_first(self, loader: Any, options: Options) -> int | None:
        """How many workers begin; None: all of them, because their number does not change."""
        if options.max_workers is None:
            return None
        is_said = getattr(loader, "max_workers", None) is None  # it is of torch's class
        said = loader.num_workers if is_said else _FIRST_WORKERS
        least = options.min_workers or 1
        return min(options.max_workers, max(least, self._pool.learnt_workers or said))

    def wake(self) -> None:
        """Take the segment up again for an epoch."""
        assert self.segment is not None, "an iterator is reset before its end"
        self._pool.wake(self.segment)

    def rest(self, parts: Parts) -> None:
        """Say that the epoch is over, and let the segment rest until the next one."""
        for over in parts.over:
            over()
        if self.segment is not None:
            self._pool.rest(self.segment)

    def close_soon(self) -> None:
        """Have a next() on another thread end within a slice, and with it that thread's turn."""
        if self.segment is not None:
            self.waiting.is_closing = True

    def end(self, parts: Parts) -> None:
        """End the workers, and give the segment back."""
        try:
            # A worker that dies while it leaves is no news, least of all inside a __del__.
            self.processes.unwatch()
            if self.segment is not None:
                for end in parts.closed:
                    end()
                self.done.set()
                for queue in self.orders:
                    queue.put(None)
                self.processes.leave()
        finally:
            were_reaped = self.processes.end()
            segment, self.segment = self.segment, None
            if segment is not None:
                self.transport.close()
                # It is kept if every worker that could write to it was reaped.
                give_back = self._pool.release if were_reaped else self._pool.discard
                give_back(segment)

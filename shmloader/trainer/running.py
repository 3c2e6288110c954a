"""What an iterator has running, opened and ended together: segment, workers, way out."""

import os
from typing import Any

import torch

from shmloader.memory import shortages
from shmloader.memory.pool import SegmentPool
from shmloader.memory.segment import Segment, Shape
from shmloader.options.record import Options
from shmloader.trainer import opening, ways_out
from shmloader.trainer.client import LoaderClient
from shmloader.trainer.parts import Parts
from shmloader.trainer.queues import DoneEvent, IndexQueue
from shmloader.trainer.tally import Tally
from shmloader.trainer.tasks import Tasks
from shmloader.trainer.waiting import Waiting
from shmloader.transport.transport import Transport
from shmloader.transport.workers import Workers
from shmloader.way_out import WayOut


class Running:
    """
    All that has to end with an iterator, however far it has come.

    Attributes:
        segment: None before it is open and after its end.
        processes: The workers.
        transport, tasks, way, waiting: There once the segment is, as are the others.
        orders: What torch knows as the workers' index queues.
        done: What torch knows as the event that tells workers to leave.
    """

    transport: Transport
    tasks: Tasks
    way: WayOut
    waiting: Waiting
    orders: list[IndexQueue]
    done: DoneEvent

    def __init__(self, pool: SegmentPool, timeout_s: float) -> None:
        self.segment: Segment | None = None
        self.processes = Workers(timeout_s)
        self._pool = pool

    def is_parents(self) -> RuntimeError:
        """Say, in a forked child, that the workers are not its own."""
        return RuntimeError(
            f"this iterator and its workers belong to process {self.processes.owner_pid}, from "
            f"which this process ({os.getpid()}) was forked: call iter(loader) here, which starts "
            "workers of this process"
        )

    def open(self, iterator: Any, options: Options, shape: Shape, parts: Parts) -> None:
        """Open a segment, and what torch knows as queues over it."""
        with shortages.explained():
            segment = self._pool.acquire(shape)
            self.transport = opening.transport_over(iterator, segment, self._pool, options)
            self.way = ways_out.PlainWay(self.transport.received)  # until one is chosen
            self.tasks = opening.tasks_over(iterator, self.transport, options)
            self.waiting = Waiting(self.tasks, self.transport, self.processes, self.way)
            self.done = DoneEvent(self.transport)
            self.orders = [IndexQueue(self.tasks, self.transport, i) for i in range(shape.workers)]
            parts.add(Tally(self._pool, self.transport, self.processes.pids))
            # Last: an iterator that has a segment has all that it takes to give it back.
            self.segment = segment
        self.way = self._way_of(iterator, options, parts)
        self.waiting = Waiting(self.tasks, self.transport, self.processes, self.way)

    def _way_of(self, iterator: Any, options: Options, parts: Parts) -> WayOut:
        if parts.way:
            way: WayOut = parts.way[0](self.transport)
            return way
        return ways_out.choose(
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
            self.processes.start(context, client, self.transport, options.restarts)

    def wake(self) -> None:
        """Take the segment up again for an epoch."""
        assert self.segment is not None, "an iterator is reset before its end"
        self._pool.wake(self.segment)

    def rest(self, parts: Parts) -> None:
        """Say that the epoch is over, and let the segment rest until the next one."""
        for over in parts.over:
            over()
        if self.segment is not None:
            if not self._pool.keeps_pages:
                self.way.rest()
            self._pool.rest(self.segment)
        self.way.end_epoch()

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
            self._return_segment(were_reaped)

    def _return_segment(self, workers_were_reaped: bool) -> None:
        """Keep the segment if every worker that could write to it was reaped."""
        segment, self.segment = self.segment, None
        if segment is None:
            return
        self.transport.close()
        # Before the pool may give pages back, or lend them to workers of the next epoch.
        may_be_used_again = self.way.close()
        if workers_were_reaped and may_be_used_again:
            self._pool.release(segment)
        else:
            self._pool.discard(segment)

"""A second client of the transport, with no loader of torch's: its workers square arrays."""

import contextlib
import itertools
import multiprocessing
import os
import signal
from dataclasses import dataclass
from typing import Any

import numpy
from torch._utils import ExceptionWrapper

from shmloader.core import Kind, Stopping
from shmloader.errors import RestartWarning, warn
from shmloader.memory import policy
from shmloader.memory.segment import shape_of
from shmloader.memory.segment_pool import SegmentPool
from shmloader.pinning.host_delivery import PlainDelivery
from shmloader.processes.signals import Signals
from shmloader.processes.watching import ParentWatch
from shmloader.transport.client import Client, Words
from shmloader.transport.transport import Transport
from shmloader.transport.waiting import Waiting
from shmloader.transport.workers import Workers
from shmloader.worker import serve


@dataclass
class Spec:
    """What a worker is started with."""

    parent: ParentWatch
    signals: Signals
    handle: Any
    leaves_after: int | None
    is_daemon = True


class Squarer(serve.Client):
    """Squares what it is asked, or does what a command says; notes how much it has answered."""

    notes = True
    caught = Exception
    answers = "batch", "the trainer"

    def __init__(self, spec, progress):
        latest = (progress.latest or progress.begun) if progress else None
        self.answered = int(latest.split()[0]) if latest else 0
        self.factor = int(latest.split()[1]) if latest else 1
        for word in progress.seeds if progress else ():
            self.factor = word
        self._leaves_after = spec.leaves_after if not latest else None

    def answer(self, request):
        self.answered += 1
        start, length = request
        return numpy.arange(start, start + length) ** 2 * self.factor

    def wrap(self, error):
        return ExceptionWrapper(where="in a worker that squares")

    def told(self, word):
        self.factor = word

    def leaves(self):
        return self.answered == self._leaves_after

    def note(self, request):
        leaves = b"leaves" if self.leaves() else b""
        return b"%d %d %s" % (self.answered, self.factor, leaves)

    def note_after(self, failure):
        return None


def work(spec, worker, progress=None, squarer=Squarer):
    """Be a worker, from where another one left off if there was one."""
    spec.parent.watch()
    spec.signals.leave()
    signal.pthread_sigmask(signal.SIG_SETMASK, spec.signals.mask)
    desk = spec.handle.sit_down(worker)
    with contextlib.suppress(Stopping):  # it may be told to leave in the middle of an answer
        serve.Server(desk, squarer(spec, progress)).serve(desk)


class SquareClient(Client):
    """What the transport asks."""

    kind = "squaring worker"
    words = Words("nothing changes", "test", "it was these squares", "they begin anew", "")
    succeed = staticmethod(work)
    unsendable = "only numbers are sent"
    modules, preload, counting = (), None, ()

    def __init__(self, spec):
        self.spec = spec
        self.leaves = spec.leaves_after is not None

    def describe(self, request):
        return f"the squares of {request}"

    def warn(self, message):
        warn(message, RestartWarning)

    def says_that_it_leaves(self, note):
        return b"leaves" in note


class Squares:
    """Workers that square, over a transport of their own; answers come by the keys of requests."""

    client_of = SquareClient

    def __init__(
        self,
        workers=2,
        slots=8,
        restarts=0,
        leaves_after=None,
        ring_bytes=1 << 26,
        grows=False,
        pool=None,
        delivery=lambda transport, pool: PlainDelivery(transport.received),
        begin=None,
    ):
        self.pool = pool or SegmentPool()
        self._clears = pool is None
        shape = shape_of(workers, 2, slots, None, ring_bytes)
        self.segment = self.pool.acquire(shape)
        reserve = policy.reserved_slots(2 * workers, workers, slots)
        heals = restarts > 0 or leaves_after is not None
        self.transport = Transport(
            *(self.segment, reserve, self.pool),
            heals=heals,
            publishes=True,
            grows=grows,
            most_each=None if begin is None else 2,
        )
        self.processes = Workers(0)
        parent, signals = ParentWatch(os.getpid()), Signals.of_now()
        spec = Spec(parent, signals, self.segment.handle(), leaves_after)
        context = multiprocessing.get_context("fork")
        self.processes.start(context, self.client_of(spec), self.transport, restarts, begin)
        self.delivery = delivery(self.transport, self.pool)
        self.waiting = Waiting(self.transport, self.processes, self.delivery)
        self.active = [True] * workers
        self.expected = set()
        self._workers = itertools.cycle(range(workers))

    def send(self, key, request, worker=None):
        self.expected.add(key)
        worker = next(self._workers) if worker is None else worker
        self.transport.send(worker, request, None, key)
        self.transport.pump()

    def take(self, timeout_s=20):
        answer = self.waiting.take(timeout_s, self.transport.receive, self.expected, self.active)
        if not isinstance(answer.kind, Kind):
            return answer, None
        self.expected.discard(answer.key)
        return answer, self.deliver(answer)

    def deliver(self, answer):
        batch = self.delivery.deliver(answer)
        self.transport.received.drop(answer)
        return batch

    def close(self):
        self.transport.ledger.stop()
        self.processes.leave()
        were_reaped = self.processes.end()
        self.transport.close()
        (self.pool.release if were_reaped else self.pool.discard)(self.segment)
        if self._clears:
            self.pool.clear()
        return were_reaped

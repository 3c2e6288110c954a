"""The worker's loop: take an order, fetch, collate, commit; leave when the trainer is gone."""

import contextlib
import os
import random
import signal
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import IterDataPipe, _DatasetKind
from torch.utils.data._utils import signal_handling
from torch.utils.data._utils import worker as stock
from torch.utils.data.graph_settings import apply_random_seed

from shmloader.core import Stopping, pickling, watch_process
from shmloader.errors import ShmloaderError, UnsendableBatch
from shmloader.processes import starting as processes
from shmloader.worker import collate, snapshot
from shmloader.worker.snapshot import Position

_LOOK_AGAIN_S = 5.0
_LAST_WORDS = 3000  # characters


class Trainer:
    """
    The process whose end ends this one, also in the middle of user code.

    It is watched as soon as it is known, which is before a dataset is unpickled.
    """

    def __init__(self, pid):
        self.pid = pid
        self._started = processes.start_time(pid)
        self._watcher = None

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.watch()

    def watch(self):
        """Start a thread without Python's lock that ends this process; again after a fork."""
        if self._watcher == os.getpid():
            return
        self._watcher = os.getpid()
        watch_process(self.pid)
        if processes.start_time(self.pid) != self._started:
            os._exit(1)


@dataclass
class Assignment:
    """All that a worker process is started with."""

    trainer: Trainer  # the first, so that it is unpickled before all others
    worker_id: int
    num_workers: int
    dataset_kind: int
    dataset: Any
    auto_collation: bool
    collate_fn: Any
    drop_last: bool
    base_seed: int
    worker_init_fn: Any
    shared_seed: int | None
    handle: Any
    signal_mask: set[int]
    publishes: bool  # a snapshot with each answer, so that it can be replaced


class _Interrupts:
    """
    Interrupts a worker at most once, and not after its work: a second Ctrl-C must not make it speak
    while it leaves.
    """

    def __init__(self):
        self.are_wanted = True
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, *_):
        if self.are_wanted:
            self.are_wanted = False
            raise KeyboardInterrupt


def run(assignment):
    """Be a worker until the trainer says quit, or is gone."""
    work_as(Worker, assignment)


def work_as(kind, assignment, *more):
    """Be a worker of some kind until the trainer says quit, or is gone."""
    interrupts = _Interrupts()
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, assignment.signal_mask)
        try:
            worker = kind(assignment, *more)
            worker.prepare()
            worker.serve()
        finally:
            interrupts.are_wanted = False
    except (KeyboardInterrupt, Stopping):
        # The trainer gets the interrupt too and has the word; or it wants this worker to leave.
        pass


class Worker:
    """Answers requests, in the place of torch's worker."""

    def __init__(self, assignment):
        """Take what it is started with; nothing has happened yet."""
        self._given = assignment
        self._dataset = assignment.dataset
        self._fetcher: Any = None
        self._init_error = None
        self._position = Position()
        self._shared_rng = torch.Generator()
        self._where = f"in DataLoader worker process {assignment.worker_id}"

    def prepare(self):
        """Become what torch's worker is before its first task: signals, seeds, worker info."""
        given = self._given
        given.trainer.watch()
        signal_handling._set_worker_signal_handlers()
        torch.multiprocessing._set_thread_name("pt_data_worker")
        torch.set_num_threads(1)
        self._seed()
        self._share_seed(self._first_shared_seed)
        stock._worker_info = stock.WorkerInfo(
            id=given.worker_id,
            num_workers=given.num_workers,
            seed=given.base_seed + given.worker_id,
            dataset=self._dataset,
        )
        self._desk = given.handle.sit_down(given.worker_id)
        collate.install(self._desk)
        self._initialise()

    @property
    def _first_shared_seed(self):
        return self._given.shared_seed

    def _seed(self):
        base_seed, worker_id = self._given.base_seed, self._given.worker_id
        random.seed(base_seed + worker_id)
        torch.manual_seed(base_seed + worker_id)
        numpy.random.seed(stock._generate_state(base_seed, worker_id))

    def _share_seed(self, seed):
        if not isinstance(self._dataset, IterDataPipe):
            return
        if seed is None:
            raise AssertionError("shared_seed must be provided for IterDataPipe workers")
        self._shared_rng.manual_seed(seed)
        self._dataset = apply_random_seed(self._dataset, self._shared_rng)

    def _initialise(self):
        """Run the user's init function and begin the first epoch; an error answers a request."""
        try:
            self._run_init_function()
            self._begin_epoch()
        except Exception:
            self._init_error = ExceptionWrapper(where=self._where)

    def _run_init_function(self):
        if self._given.worker_init_fn is not None:
            self._given.worker_init_fn(self._given.worker_id)

    def _begin_epoch(self):
        given = self._given
        self._fetcher = _DatasetKind.create_fetcher(
            given.dataset_kind,
            self._dataset,
            given.auto_collation,
            given.collate_fn,
            given.drop_last,
        )

    def serve(self):
        """Answer every request in the order in which it was sent."""
        while True:
            order = self._desk.take(_LOOK_AGAIN_S)
            if self._desk.stopping:
                return
            if order is None:
                continue
            verb, value = order
            if verb == "quit":
                return
            if verb == "resume":
                self._resume(value)
            else:
                self._answer(value)
            del order, value

    def _resume(self, seed):
        # Said before the dataset is asked for its iterator, as in torch.
        self._desk.resumed()
        self._position = Position()
        self._share_seed(seed)
        self._begin_epoch()

    def _answer(self, index):
        if self._position.is_exhausted:
            self._desk.write_nothing()
        elif self._init_error is not None:
            self._write_error(self._init_error)
            self._init_error = None
        else:
            self._fetch_and_write(index)
        if self._given.publishes:
            self._publish(index)
        # No name refers to the batch any more: an alias that is alive now is the user's.
        self._desk.commit()

    def _fetch_and_write(self, index):
        failure = self._try_to_write(index)
        if failure is not None:
            # By now no name refers to the batch, so its bytes are free for the error's text.
            self._write_error(failure)

    def _try_to_write(self, index):
        try:
            batch = self._fetch(index)
        except StopIteration if self._is_iterable else ():  # noqa: B030
            self._position.is_exhausted = True
            self._desk.write_end()
        except Exception:
            return ExceptionWrapper(where=self._where)
        else:
            return self._write(batch)
        return None

    @property
    def _is_iterable(self):
        return self._given.dataset_kind == _DatasetKind.Iterable

    def _fetch(self, index):
        if self._fetcher is None:
            # Initialising failed and was reported once; from then on torch says this.
            raise UnboundLocalError(
                "cannot access local variable 'fetcher' where it is not associated with a value"
            )
        return self._fetcher.fetch(index)

    def _write(self, batch):
        try:
            self._desk.write(batch, False, pickling.dumps)
        except Exception as error:
            return self._wrap_write_error(batch, error)
        return None

    def _wrap_write_error(self, batch, error):
        try:
            if isinstance(error, (ShmloaderError, MemoryError, OSError)):
                raise error
            raise _explain(batch, error) from error
        except Exception:
            return ExceptionWrapper(where=self._where)
        finally:
            # The error's traceback holds this frame, and the frame would hold the batch.
            del batch, error

    def _publish(self, index):
        """Write behind the answer what a replacement of this worker would need."""
        position = self._position
        position.attempts += 1
        position.has_begun = self._fetcher is not None
        position.index = index if self._is_iterable else None
        try:
            self._ask_dataset(position)
            self._write_snapshot()
        except Exception:
            self._publish_failure(ExceptionWrapper(where=self._where))

    def _publish_failure(self, failure):
        """Answer with an error, such as a state that cannot be pickled, and go on without it."""
        self._position.dataset = self._position.iterator = None
        if not self._position.is_exhausted:
            # The trainer must learn of the end: nothing else may stand in its place.
            self._write_error(failure)
        # Where there is no room for a snapshot, this worker cannot be replaced until its next.
        with contextlib.suppress(ShmloaderError):
            self._write_snapshot()

    def _write_snapshot(self):
        self._desk.write_snapshot(snapshot.take(self._position))

    def _ask_dataset(self, position):
        """Have an iterable dataset, or its iterator, say where it is, if it can."""
        if not self._is_iterable or self._fetcher is None:
            return
        iterator = self._fetcher.dataset_iter
        position.dataset = snapshot.state_of(self._dataset)
        if iterator is not self._dataset:
            position.iterator = snapshot.state_of(iterator)

    def _write_error(self, wrapper):
        try:
            self._desk.write(wrapper, True, pickling.dumps)
        except Exception:
            # A class that cannot be sent by name, such as one made in a function, or no room for
            # the text: keep what fits into the page that held the request.
            wrapper.exc_type = RuntimeError
            wrapper.exc_msg = wrapper.exc_msg[-_LAST_WORDS:]
            self._desk.write(wrapper, True, pickling.dumps)


def _explain(batch, error):
    """An error that names the leaf because of which a batch could not be written."""
    found = pickling.find_unsendable(batch)
    if found is None:
        return UnsendableBatch(f"the batch cannot be sent to the trainer: {error}")
    path, leaf = found
    return UnsendableBatch(
        f"{path} ({type(leaf).__name__}) cannot be sent to the trainer: {error}. Return tensors, "
        "arrays, numbers, strings or picklable objects"
    )

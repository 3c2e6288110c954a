"""The worker's loop: take an order, fetch, collate, commit; leave when the trainer is gone."""

import contextlib
import functools
import gc
import operator
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import IterDataPipe, Subset, _DatasetKind
from torch.utils.data._utils import signal_handling
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data.graph_settings import apply_random_seed

from shmloader.core import Order, Stopping, pickling
from shmloader.errors import ShmloaderError, UnsendableBatch, leave_out_levels
from shmloader.memory.segment import Handle
from shmloader.processes import scheduling
from shmloader.processes.watching import ParentWatch
from shmloader.worker import collate, generator_states, heap, restoring, snapshot, storages
from shmloader.worker.ahead import LookAhead
from shmloader.worker.growth import Growth
from shmloader.worker.seeds import SeededFetcher, listed
from shmloader.worker.snapshot import Position

_PLACE = Order.PLACE  # found faster than an attribute of the enum's class
_LOOK_AGAIN_S = 5.0
_LAST_WORDS = 3000  # characters


@dataclass
class WorkerSpec:
    """All that a worker process is started with."""

    parent: ParentWatch  # the first, so that the trainer is watched while the others are unpickled
    worker_id: int
    num_workers: int
    dataset_kind: int
    dataset: Any
    auto_collation: bool
    collate_fn: Callable[[Any], Any]
    drop_last: bool
    base_seed: int
    worker_init_fn: Callable[[int], None] | None
    shared_seed: int | None
    handle: Handle
    signal_mask: set[int]
    publishes: bool  # a snapshot goes with each answer
    is_seeded: bool  # draws are seeded by the batch
    fetch_threads: int  # threads that fetch samples; 0: none
    nice: int  # added to the niceness that it starts with
    worker_bytes: int | None  # of growth after which a worker leaves, to be replaced


class _Interrupts:
    """
    Raises KeyboardInterrupt at most once, and never while the worker leaves.

    So a second Ctrl-C prints no traceback.
    """

    def __init__(self) -> None:
        self.are_wanted = True
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.are_wanted:
            self.are_wanted = False
            raise KeyboardInterrupt


def run(spec: WorkerSpec) -> None:
    """Be a worker until the trainer says quit, or is gone."""
    work_as(Worker, spec)


def work_as(kind: Callable[..., "Worker"], spec: WorkerSpec, *more: Any) -> None:
    """Be a worker of some kind until the trainer says quit, or is gone."""
    worker = kind(spec, *more)
    interrupts = _Interrupts()
    try:
        try:
            worker.prepare()
            worker.serve()
        finally:
            interrupts.are_wanted = False
            worker.leave()
    except (KeyboardInterrupt, Stopping):
        # The trainer gets the interrupt too and handles it; or it wants this worker to leave.
        pass


class Worker:
    """
    Answers requests, instead of torch's worker.

    Attributes:
        has_left: True if it has grown too much, and its last answer said so.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        # The process keeps the spec to its end, and the dataset must end with the worker.
        self._dataset, spec.dataset = spec.dataset, None
        self._fetcher: Any = None
        self._watches = False  # torch fetches the samples of a request one by one
        self._ahead: LookAhead | None = None
        self._growth: Growth | None = None
        self.has_left = False
        self._init_error: ExceptionWrapper | None = None
        self._position = Position()
        self._as_seeded: tuple[bytes, ...] | None = None
        self._shared_rng = torch.Generator()
        self._where = f"in DataLoader worker process {spec.worker_id}"

    def prepare(self) -> None:
        """Become what torch's worker is before its first task: signals, seeds, worker info."""
        heap.leave_inherited()
        spec = self._spec
        spec.parent.watch()
        signal_handling._set_worker_signal_handlers()  # type: ignore[attr-defined]
        torch.multiprocessing._set_thread_name("pt_data_worker")
        torch.set_num_threads(1)
        heap.keep_freed_end(int(spec.num_workers))
        self._seed()
        # Not before: torch reads sources while it seeds, and an interrupt would leave them open.
        signal.pthread_sigmask(signal.SIG_SETMASK, spec.signal_mask)
        self._share_seed(spec.shared_seed)
        torch_worker._worker_info = torch_worker.WorkerInfo(
            id=spec.worker_id,
            num_workers=spec.num_workers,
            seed=spec.base_seed + spec.worker_id,
            dataset=self._dataset,
        )
        self._desk = spec.handle.sit_down(spec.worker_id)
        collate.install(self._desk)
        failure = spec.parent.failure
        if failure is None:
            self._initialise()
        else:  # no user code, which the trainer's death would not end
            where = type(failure), failure, failure.__traceback__
            self._init_error = ExceptionWrapper(where, self._where)
        if spec.fetch_threads != 0:
            # Now: the threads take over the modes that the init function has set.
            seed = spec.base_seed if spec.is_seeded else None
            self._ahead = LookAhead(self._desk, spec.fetch_threads, seed)
            self._aim(self._ahead)
        if spec.worker_bytes is not None:
            self._growth = Growth(spec.worker_bytes)

    def _seed(self) -> None:
        base_seed, worker_id = self._spec.base_seed, self._spec.worker_id
        random.seed(base_seed + worker_id)
        torch.manual_seed(base_seed + worker_id)
        numpy.random.seed(torch_worker._generate_state(base_seed, worker_id))
        if self._needs_seeds:
            self._as_seeded = generator_states.pack_all()

    @property
    def _needs_seeds(self) -> bool:
        """Returns True if states of generators are written or read beside those of the seeds."""
        return self._spec.publishes

    def _share_seed(self, seed: int | None) -> None:
        if not isinstance(self._dataset, IterDataPipe):
            return
        if seed is None:
            raise AssertionError("shared_seed must be provided for IterDataPipe workers")
        self._shared_rng.manual_seed(seed)
        self._dataset = apply_random_seed(self._dataset, self._shared_rng)

    def _initialise(self) -> None:
        """Run the user's init function and begin the first epoch; an error becomes an answer."""
        try:
            self._run_init_function()
            self._begin_epoch()
        except Exception:
            self._init_error = ExceptionWrapper(where=self._where)

    def _run_init_function(self) -> None:
        # Before any code of the user's, and where an error reaches the trainer.
        if self._spec.nice:
            scheduling.yield_cores(self._spec.nice)
        if self._spec.worker_init_fn is not None:
            self._spec.worker_init_fn(self._spec.worker_id)

    def _begin_epoch(self) -> None:
        spec = self._spec
        self._fetcher = _DatasetKind.create_fetcher(
            spec.dataset_kind,
            self._dataset,
            spec.auto_collation,
            storages.with_slot(spec.collate_fn),
            spec.drop_last,
        )
        if spec.is_seeded:
            self._fetcher = SeededFetcher(self._fetcher, spec.base_seed)
        self._watches = spec.auto_collation and is_fetched_singly(self._dataset, self._is_iterable)

    def _aim(self, ahead: LookAhead) -> None:
        """Have the threads fetch what torch's fetcher would."""
        dataset = self._dataset
        if self._fetcher is None:
            ahead.aim(None, is_split=True)
        elif self._spec.auto_collation and not self._watches:
            ahead.aim(dataset.__getitems__, is_split=False)
        else:
            ahead.aim(functools.partial(operator.getitem, dataset), is_split=self._watches)

    def serve(self) -> None:
        """Answer every request in the order in which it was sent."""
        orders = self._desk if self._ahead is None else self._ahead
        while True:
            order = orders.take(_LOOK_AGAIN_S)
            if self._desk.stopping:
                return
            if order is None:
                if self._spec.parent.has_ended:
                    return
                continue
            verb, value = order
            if verb is _PLACE:
                self._answer(value)
                if self.has_left:
                    return
            elif verb is Order.RESUME:
                self._resume(value)
            else:
                return
            del order, value

    def leave(self) -> None:
        """Leave no name of the dataset outside of this worker, so that both end together."""
        torch_worker._worker_info = None
        if self._ahead is not None:
            self._ahead.end()

    def _resume(self, seed: int | None) -> None:
        # Acknowledge before creating the dataset's iterator, as torch does.
        self._desk.resumed()
        self._position = Position()
        self._share_seed(seed)
        self._begin_epoch()
        if self._ahead is not None:
            self._aim(self._ahead)

    def _answer(self, index: Any) -> None:
        if self._position.is_exhausted:
            self._desk.write_nothing()
        elif self._init_error is not None:
            self._write_error(self._init_error)
            self._init_error = None
        else:
            self._fetch_and_write(index)
        growth = self._growth
        if growth is not None and growth.is_too_much():
            self._position.grown = growth.taken_bytes, growth.batches
        if self._spec.publishes or self._position.grown is not None:
            is_written = self._publish(index)
            self.has_left = is_written and self._position.grown is not None
            self._position.grown = None  # or it leaves after a later answer
        if self._desk.is_cyclic:
            gc.collect(1)  # it refers to itself still; the old generation takes long
        # No name of ours refers to the batch any more, so an alias that is alive now is the user's.
        self._desk.commit()

    # Each call returns before the next step, so that no frame keeps the batch alive at commit.

    def _fetch_and_write(self, index: Any) -> None:
        failure = self._try_to_write(index)
        if failure is not None:
            # By now no name refers to the batch, so its bytes are free for the error's text.
            self._write_error(failure)

    def _try_to_write(self, index: Any) -> ExceptionWrapper | None:
        try:
            batch = self._fetch(index)
        except StopIteration if self._is_iterable else ():  # noqa: B030
            self._position.is_exhausted = True
            self._desk.write_end()
        except Exception as error:
            leave_out_levels(error)
            return ExceptionWrapper(where=self._where)
        else:
            return self._write(batch)
        return None

    @property
    def _is_iterable(self) -> bool:
        return bool(self._spec.dataset_kind == _DatasetKind.Iterable)

    def _fetch(self, index: Any) -> Any:
        if self._fetcher is None:
            # Initialising failed and was reported once; from then on torch raises this.
            raise UnboundLocalError(
                "cannot access local variable 'fetcher' where it is not associated with a value"
            )
        if self._ahead is not None:
            request = self._desk.watch(index) if self._watches else index
            return self._collate(self._ahead.samples(request))
        if self._watches:
            index = self._desk.watch(listed(index) if self._spec.is_seeded else index)
        if not self._spec.is_seeded:
            return self._fetcher.fetch(index)
        return self._fetcher.fetch_as(self._desk.numbers, index)

    def _collate(self, samples: Any) -> Any:
        if not self._spec.is_seeded:
            return self._fetcher.collate_fn(samples)
        return self._fetcher.collate_as(self._desk.numbers, samples)

    def _write(self, batch: Any) -> ExceptionWrapper | None:
        try:
            self._desk.write(batch, False, pickling.Pickler)
        except Exception as error:
            return self._wrap_write_error(batch, error)
        return None

    def _wrap_write_error(self, batch: Any, error: Exception) -> ExceptionWrapper:
        leave_out_levels(error)
        try:
            if isinstance(error, (ShmloaderError, MemoryError, OSError)):
                raise error
            # Of endless recursion only the message: its frames are many pages.
            cause = None if isinstance(error, RecursionError) else error
            raise _explain(batch, error) from cause
        except Exception:
            return ExceptionWrapper(where=self._where)
        finally:
            # The error's traceback holds this frame, and the frame would hold the batch.
            del batch, error

    def _publish(self, index: Any) -> bool:
        """Write the snapshot for a replacement after the answer. Returns False if it has none."""
        position = self._position
        position.attempts += 1
        position.has_begun = self._fetcher is not None
        if self._desk.numbers is not None:
            position.epoch = self._desk.numbers[0]
        position.index = index if self._is_iterable else None
        try:
            self._ask_dataset(position)
            self._write_snapshot()
        except Exception as error:
            # A worker that only wants to leave can do so after an answer that leaves it room.
            if self._spec.publishes or not isinstance(error, ShmloaderError):
                self._publish_failure(ExceptionWrapper(where=self._where))
            return False
        return True

    def _publish_failure(self, failure: ExceptionWrapper) -> None:
        """Answer with an error, such as a state that cannot be pickled, and go on without it."""
        position = self._position
        position.dataset = position.iterator = position.grown = None
        position.lacks_state = self._fetcher is not None and snapshot.is_stateful(self._dataset)
        if not position.is_exhausted:
            # The trainer must learn of the end: an error must not replace it.
            self._write_error(failure)
        # Without room for a snapshot, or for a state that no fetches lead to, this worker cannot be
        # replaced until its next one.
        if self._is_iterable or not position.lacks_state:
            with contextlib.suppress(ShmloaderError):
                self._write_snapshot()
        position.lacks_state = False

    def _write_snapshot(self) -> None:
        if self._spec.is_seeded and not self._is_iterable:
            taken = snapshot.make(self._position, None)  # each batch seeds for itself
        else:
            taken = snapshot.take(self._position, self._as_seeded)
        self._desk.write_snapshot(taken)

    def _ask_dataset(self, position: Position) -> None:
        """Store the state_dict() of a dataset, or of its iterator, if there is one."""
        if self._fetcher is None:
            return
        position.dataset = snapshot.state_of(self._dataset)
        if not self._is_iterable:
            return
        position.has_ended = restoring.has_ended(self._fetcher)
        iterator = self._fetcher.dataset_iter
        if iterator is not self._dataset:
            position.iterator = snapshot.state_of(iterator)

    def _write_error(self, wrapper: ExceptionWrapper) -> None:
        try:
            self._desk.write(wrapper, True, pickling.Pickler)
        except Exception:
            # A class that cannot be sent by name, such as one made in a function, or no room for
            # the text: keep what fits into the page that held the request.
            wrapper.exc_type = RuntimeError
            wrapper.exc_msg = wrapper.exc_msg[-_LAST_WORDS:]
            self._desk.write(wrapper, True, pickling.Pickler)


def is_fetched_singly(dataset: Any, is_iterable: bool) -> bool:
    """Returns True if no code of the user's sees the request: torch takes its indices in turn."""
    if is_iterable:
        return True
    while type(dataset) is Subset:
        dataset = dataset.dataset  # whose __getitems__ is torch's own loop over the request
    return not getattr(dataset, "__getitems__", None)


def _explain(batch: Any, error: Exception) -> UnsendableBatch:
    """Make an error that names the leaf that could not be written."""
    found = pickling.find_unsendable(batch)
    if found is None and isinstance(error, RecursionError):
        found = pickling.find_deepest(batch)  # an object and its state are two levels
    if found is None:
        return UnsendableBatch(f"the batch cannot be sent to the trainer: {error}")
    path, leaf = found
    return UnsendableBatch(
        f"{path} ({type(leaf).__name__}) cannot be sent to the trainer: {error}. Return tensors, "
        "arrays, numbers, strings or picklable objects"
    )

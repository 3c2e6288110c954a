"""The DataLoader's client in a worker: what a worker is, and how it answers a request."""

import contextlib
import functools
import operator
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import IterDataPipe, _DatasetKind
from torch.utils.data._utils import signal_handling
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data.graph_settings import apply_random_seed

from shmloader.core import Stopping, Unreadable
from shmloader.errors import ShmloaderError, entries_of, said
from shmloader.memory.segment import Handle
from shmloader.processes import exits, scheduling
from shmloader.processes.signals import Signals
from shmloader.processes.watching import ParentWatch
from shmloader.samples import skip_errors
from shmloader.worker import collate, generator_states, heap, restoring, snapshot
from shmloader.worker.ahead import LookAhead
from shmloader.worker.growth import Growth
from shmloader.worker.seeds import SeededFetcher, listed
from shmloader.worker.serve import (
    END,
    LAST_WORDS,
    LEAVING,
    NOTHING,
    Failed,
    Interrupted,
    Interrupts,
    Server,
    Untold,
)
from shmloader.worker.snapshot import Position


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
    signals: Signals
    publishes: bool  # a snapshot goes with each answer
    is_seeded: bool  # draws are seeded by the batch
    fetch_threads: int  # threads that fetch samples; 0: none
    nice: int  # added to the niceness that it starts with
    worker_bytes: int | None  # of growth after which a worker leaves, to be replaced
    is_daemon: ClassVar[bool] = True  # as torch's workers are


def work_as(worker: "Worker") -> None:
    """Be a worker until the trainer says quit, or is gone."""
    # Not while the worker leaves: a second Ctrl-C prints no traceback.
    interrupts = Interrupts(Interrupted, are_wanted=True)
    # The trainer gets an interrupt too and handles it; or it wants this worker to leave.
    with exits.in_time(), contextlib.suppress(KeyboardInterrupt, Stopping):
        try:
            worker.prepare()
            worker.serve()
        finally:
            interrupts.are_wanted = False
            worker.leave()


class Worker:
    """Answers requests, instead of torch's worker."""

    caught: type[BaseException] = Exception  # as in torch's worker, which anything else ends
    answers = "batch", "the training process"

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        # The process keeps the spec to its end, and the dataset must end with the worker.
        self._dataset, spec.dataset = spec.dataset, None
        self._fetcher: Any = None
        self._watches = False  # torch fetches the samples of a request one by one
        self._ahead: LookAhead | None = None
        self._growth: Growth | None = None
        self._init_error: ExceptionWrapper | None = None
        self._position = Position()
        self._asks = True  # the dataset, and its iterator, for their states
        self._has_told = False  # one of them has told one
        self._untold: str | None = None
        self._as_seeded: tuple[bytes, ...] | None = None
        self._shared_rng = torch.Generator()
        self.notes = spec.publishes  # a snapshot goes with each answer
        self.where = f"in DataLoader worker process {spec.worker_id}"

    def prepare(self) -> None:
        """Become what torch's worker is before its first task, and sit down at the desk."""
        heap.leave_inherited()
        spec = self._spec
        spec.parent.watch()
        self._be_torchs()
        self._desk = spec.handle.sit_down(spec.worker_id)
        collate.install(self._desk)
        skip_errors.listeners[:] = [self._desk.count_left_out]
        self._initialise()
        if spec.fetch_threads != 0:
            # Now: the threads take over the modes that the init function has set.
            seed = spec.base_seed if spec.is_seeded else None
            self._ahead = LookAhead(self._desk, spec.fetch_threads, seed)
            self._aim(self._ahead)
        if spec.worker_bytes is not None:
            self._growth = Growth(spec.worker_bytes)

    def _be_torchs(self) -> None:
        """Have the signals, the seeds and the worker info of torch's worker."""
        spec = self._spec
        spec.signals.follow(spec.parent.pid)
        spec.signals.leave_after(signal_handling._set_worker_signal_handlers)  # type: ignore[attr-defined]
        torch.multiprocessing._set_thread_name("pt_data_worker")
        torch.set_num_threads(1)
        heap.keep_freed_end(int(spec.num_workers))
        self._seed()
        # Not before: torch reads sources while it seeds, and an interrupt would leave them open.
        signal.pthread_sigmask(signal.SIG_SETMASK, spec.signals.mask)
        self._share_seed(spec.shared_seed)
        torch_worker._worker_info = torch_worker.WorkerInfo(
            id=spec.worker_id,
            num_workers=spec.num_workers,
            seed=spec.base_seed + spec.worker_id,
            dataset=self._dataset,
        )

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
        except Exception as error:
            self._init_error = self.wrap(error)

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
            collate.with_slot(spec.collate_fn),
            spec.drop_last,
        )
        if not spec.auto_collation:
            self._fetcher.dataset = skip_errors.single(self._dataset)
        if spec.is_seeded:
            self._fetcher = SeededFetcher(self._fetcher, spec.base_seed)
        self._watches = spec.auto_collation and skip_errors.is_fetched_singly(
            self._dataset, self._is_iterable
        )

    def _aim(self, ahead: LookAhead) -> None:
        """Have the threads fetch what torch's fetcher would."""
        if self._fetcher is None:
            ahead.aim(None, is_split=True)
            return
        dataset = self._fetcher.dataset
        if self._spec.auto_collation and not self._watches:
            ahead.aim(dataset.__getitems__, is_split=False)
        else:
            fetch = functools.partial(operator.getitem, dataset)
            ahead.aim(fetch, self._watches, skip_errors.tolerance_of(dataset))

    def serve(self) -> None:
        """Answer every request in the order in which it was sent."""
        orders = self._desk if self._ahead is None else self._ahead
        Server(self._desk, self).serve(orders)

    def leave(self) -> None:
        """Leave no name of the dataset outside of this worker, so that both end together."""
        torch_worker._worker_info = None
        if self._ahead is not None:
            self._ahead.end()

    # What the server asks

    def resumes(self) -> None:
        """Leave to the trainer what it handles in the next epoch."""
        self._spec.signals.follow(self._spec.parent.pid)

    def told(self, word: int | None) -> None:
        """Begin the next epoch; the word is the seed that data pipes share in it."""
        self._position = Position()
        self._share_seed(word)
        self._begin_epoch()
        if self._ahead is not None:
            self._aim(self._ahead)

    def answer(self, request: Any) -> Any:
        """Fetch and collate."""
        if self._position.is_exhausted:
            return NOTHING
        if self._init_error is not None:
            failure, self._init_error = self._init_error, None
            raise Failed(failure)
        if type(request) is Unreadable:
            raise Failed(self.wrap(request.error))
        try:
            return self._fetch(request)
        except StopIteration if self._is_iterable else ():  # noqa: B030
            self._position.is_exhausted = True
            return END

    def wrap(self, error: BaseException) -> ExceptionWrapper:
        """Return what torch raises in the trainer; or names the class of an error."""
        try:
            trace = next(entries_of(error), None)
            return ExceptionWrapper((type(error), error, trace), self.where)
        except LEAVING:
            raise
        except BaseException:  # of the error's own code
            plain = RuntimeError(f"{type(error).__name__}, an error that cannot be printed")
            return ExceptionWrapper((RuntimeError, plain, None), self.where)

    def shorten(self, wrapper: ExceptionWrapper) -> ExceptionWrapper:
        """Keep the end of an error's text."""
        wrapper.exc_type, wrapper.exc_msg = RuntimeError, wrapper.exc_msg[-LAST_WORDS:]
        return wrapper

    def leaves(self) -> bool:
        """Returns True if this process has grown too much."""
        self._position.leaves = self._growth is not None and self._growth.is_too_much()
        return self._position.leaves

    def note(self, request: Any) -> bytes:
        """Write down where this worker is, and the states of its dataset."""
        position = self._position
        position.attempts += 1
        position.has_begun = self._fetcher is not None
        if self._desk.numbers is not None:
            position.epoch = self._desk.numbers[0]
        position.index = request if self._is_iterable else None
        position.lacks_state = position.is_lost = False
        position.untold = self._untold
        try:
            self._ask_dataset(position)
            note = self._snapshot()
            self._has_told = self._has_told or restoring.has_state(position)
            return note
        except (ShmloaderError, *LEAVING):
            raise
        except BaseException as error:  # of the user's: no batch is lost to it
            return self._note_without_states(error)

    def _note_without_states(self, error: BaseException) -> bytes:
        """
        Write down where this worker is if a state cannot be told.

        Raises:
            Untold: States were told before, so this one belongs to the place.
        """
        position = self._position
        position.dataset = position.iterator = None
        is_none, leads = not self._has_told, self._is_iterable
        self._untold = self._untold or self._complaint(error, is_none)
        position.untold = self._untold
        if is_none:
            self._asks = False
            return self._snapshot()
        position.leaves, position.lacks_state, position.is_lost = False, leads, not leads
        raise Untold(self._snapshot())

    def _complaint(self, error: BaseException, is_none: bool) -> str:
        """Say what comes of a state that was not told."""
        comes = "the dataset counts as one without state_dict()"
        if not is_none and self._is_iterable:
            comes = "until state_dict() succeeds again, another worker fetches its epoch again"
        elif not is_none:
            comes = (
                "until state_dict() succeeds again, the worker is not replaced, and begins again "
                "in a resumed run"
            )
        return (
            f"worker {self._spec.worker_id} has no state of its {type(self._dataset).__name__}, "
            f"whose state_dict() failed: {said(error)}. So {comes}"
        )

    def note_after(self, failure: Exception) -> bytes | None:
        """Write down where this worker is, without states that could not be told."""
        position = self._position
        position.dataset = position.iterator = None
        position.leaves = False
        has_state = self._asks and snapshot.is_stateful(self._dataset)
        lacks_state = self._fetcher is not None and has_state
        if lacks_state and not self._is_iterable:
            return None  # no fetches lead to that state
        position.lacks_state = lacks_state
        try:
            return self._snapshot()
        finally:
            position.lacks_state = False

    def _snapshot(self) -> bytes:
        if self._spec.is_seeded and not self._is_iterable:
            return snapshot.make(self._position, None)  # each batch seeds for itself
        return snapshot.take(self._position, self._as_seeded)

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

    def _ask_dataset(self, position: Position) -> None:
        """Store the state_dict() of a dataset, or of its iterator, if there is one."""
        if self._fetcher is None:
            return
        if self._is_iterable:
            position.has_ended = restoring.has_ended(self._fetcher)
        if not self._asks:
            return
        position.dataset = snapshot.state_of(self._dataset)
        if self._is_iterable and (iterator := self._fetcher.dataset_iter) is not self._dataset:
            position.iterator = snapshot.state_of(iterator)

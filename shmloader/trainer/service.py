"""What serves one loader: its segments, and the iterators that use them."""

import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch.utils.data

from shmloader.errors import at_users_line, warn
from shmloader.memory import limits, policy, sending
from shmloader.memory.pool import LAYOUT, SegmentPool
from shmloader.memory.segment import Shape, default_ring_bytes, shape_of
from shmloader.options import rules
from shmloader.options.record import Options
from shmloader.order.order import NoPlace, Order
from shmloader.order.samplers import epoch_of
from shmloader.processes import scheduling
from shmloader.rooms import has_room, require_room
from shmloader.stats import Epoch, Held, Stats
from shmloader.stats.layout import Records
from shmloader.stats.setting import Setting, in_use
from shmloader.stats.timeline import Timeline, timeline_over
from shmloader.tolerance import left_out_here
from shmloader.trainer import opening
from shmloader.trainer.iterator import RingIterator
from shmloader.trainer.parts import Parts
from shmloader.trainer.single import SingleIterator

_RESUMING = "order/resuming"
_RESUMES = has_room(_RESUMING)
if _RESUMES:
    # Not when they are used: a process that has no descriptor left can import nothing.
    from shmloader.order.resuming.place import Place
    from shmloader.order.resuming.record import Record
    from shmloader.order.resuming.resumption import Resumption
    from shmloader.order.resuming.states import read

_MAY_CACHE = has_room("data")
if _MAY_CACHE:
    from shmloader.data.caches import caches_in

Evidence = tuple[Epoch, Timeline, Setting]  # what a report judges


class Service:
    """
    Makes the iterators of one loader, which is of our class or of torch's, and counts for all.

    Attributes:
        pool: The loader's segments.
        started: The iterator that the next iter() returns; None: it makes one.
        attached: More parts of the iterators with workers that are made from now on.
    """

    def __init__(self, keep_pages: bool = True) -> None:
        self.pool = SegmentPool(keep_pages)
        self.started: Any = None
        self.attached: tuple[Any, ...] = ()
        # By id: another thread may add one while these are listed, which a WeakSet does not bear.
        self._iterators: weakref.WeakValueDictionary[int, RingIterator]
        self._iterators = weakref.WeakValueDictionary()
        self._record: Record | None = None  # the last iterator's
        self._loaded: Resumption | None = None  # for the next one
        self._resumed_at: int | None = None  # the sampler's epoch where the last one went on

    @property
    def loaded(self) -> dict[str, Any] | None:
        """The state that was loaded, until an iterator goes on from it."""
        return None if self._loaded is None else self._loaded.state.copy()

    def iterate_here(self, loader: Any, options: Options) -> SingleIterator:
        """Start an iterator of a loader without workers."""
        rules.check(loader, options)
        self._look_back(loader)
        place = self._place(loader, options)
        order = Order(loader._index_sampler, place, is_packed=False)
        iterator = SingleIterator(loader, options, order, Parts(place))
        if place.record is not None:
            place.record.ask = iterator.dataset_to_ask()
        self._begin_from(place)
        return iterator

    def _place(self, loader: Any, options: Options) -> NoPlace:
        """Return what knows where a new iterator is, if the room of that is there."""
        return Place(loader, options, self._loaded) if _RESUMES else NoPlace()

    def _begin_from(self, place: NoPlace) -> None:
        self._loaded, self._record = None, place.record

    def state_dict(
        self,
        loader: Any,
        options: Callable[[], Options],
        *,
        is_ahead: bool = False,
        counted: int | None = None,
    ) -> dict[str, Any]:
        """
        Say where the loader is; what was loaded and not begun is where it is.

        Args:
            is_ahead: The loop has not seen the last batch, until the epoch is over.
            counted: How many batches the loop takes, if it never asks for the end of an epoch.
        """
        if self.loaded is not None:
            return self.loaded
        if not _RESUMES:
            require_room("state_dict()", _RESUMING)
        if self._record is None:
            # A copy of a loader whose workers live on shares their iterator.
            live = loader._iterator if isinstance(loader._iterator, RingIterator) else None
            self._record = Record(loader, options()) if live is None else live._order.place.record
        return self._record.state_before() if is_ahead else self._record.state_dict(counted)

    def load_state_dict(self, loader: Any, options: Options, state: Any) -> int | None:
        """
        Have the next iterator go on from a state.

        Returns:
            The sampler's epoch then; None if it has none.

        Raises:
            ValueError, TypeError: It cannot; nothing has changed.
        """
        require_room("load_state_dict()", _RESUMING)
        self._loaded = Resumption(loader, options, read(state)) if state != {} else None
        self._record = None
        self._end_start()
        # One whose workers live on would begin its next epoch where it is itself.
        loader._iterator = None
        return None if self._loaded is None else self._loaded.sampler_epoch

    def iterate(self, loader: Any, options: Options) -> RingIterator:
        """Start an iterator of a loader with workers, as torch's `_get_iterator` does."""
        reason = why_unserved(loader)
        if reason:
            raise TypeError(reason)
        at_users_line(loader.check_worker_number_rationality, torch.utils.data.DataLoader)
        rules.check(loader, options)
        sending.install()  # again: torch's init_reductions() takes it away
        shape = _shape_of(loader, options)
        self.pool.label = type(loader.dataset).__name__
        self.pool.about = self.setting(loader, options).to_bytes()
        for cache in _caches_of(loader):
            cache.note_user(self.pool.number)
        self._look_back(loader)
        place = self._place(loader, options)
        order = Order(loader._index_sampler, place, is_packed=True)
        parts = Parts(place, *self.attached)
        iterator = RingIterator(loader, options, self.pool, shape, order, parts)
        self._begin_from(place)
        self._iterators[id(iterator)] = iterator
        return iterator

    def _look_back(self, loader: Any) -> None:
        """Warn if the sampler is told to go back behind the epoch of a state that was loaded."""
        before = self._resumed_at
        self._resumed_at = None if self._loaded is None else self._loaded.sampler_epoch
        epoch = epoch_of(loader._index_sampler)
        if before is not None and self._loaded is None and epoch < before:
            warn(
                f"the state that was loaded went on in the sampler's epoch {before}, and this "
                f"epoch is its {epoch}, whose order that run has had: call "
                f"set_epoch({before + 1}) now, and count on from there"
            )

    def stats(self, loader: Any) -> Stats:
        """Count over all epochs and live iterators of a loader, and what its caches did."""
        caches = tuple(cache.cache_stats() for cache in _caches_of(loader))
        stats = self.pool.stats()
        here = left_out_here(loader.dataset)
        return replace(stats, caches=caches, left_out=stats.left_out + here)

    def setting(self, loader: Any, options: Options) -> Setting:
        """Say what a loader with workers is run with, when its iterator starts."""
        shape = _shape_of(loader, options)
        by_default = _shape_of(loader, replace(options, slots=None))
        depth = int(loader.prefetch_factor)
        ahead = shape.workers * depth
        return Setting(
            workers=shape.workers,
            prefetch_factor=depth,
            in_order=bool(loader.in_order),
            assignment=options.assignment,
            may_be_dynamic=rules.may_be_dynamic(loader, options),
            may_have_threads=rules.may_have_threads(loader, options),
            slots=shape.slots,
            chosen_slots=options.slots,
            extra_slots=max(0, by_default.slots - ahead),
            spare=shape.slots - policy.reserved_slots(ahead, shape.workers, shape.slots),
            ring_bytes=shape.ring_bytes,
            most_bytes=default_ring_bytes(),
            cores=scheduling.cores(),
            ranks=limits.ranks(),
            persistent=bool(loader.persistent_workers),
            start=opening.start_of(loader, options),
        )

    def last_epoch(self, setting: Setting) -> Evidence | None:
        """Take what a report needs of the last epoch; None if none was run with workers."""
        return next(self.epochs(setting), None)

    def epochs(self, setting: Setting) -> Iterator[Evidence]:
        """List the epochs, the last one first, with batches and setting; the loader may be gone."""
        setting = setting.grown_to(in_use(self.pool.stats().slots))
        records = LAYOUT.records(b"".join(self.pool.logs()))
        for epoch in reversed(self.pool.history.epochs()):
            yield epoch, timeline_over(records, LAYOUT, epoch.number), setting

    def last_records(self) -> Records:
        """Return the last epoch's batches, as far as the log has them."""
        epochs = self.pool.history.epochs()
        records = LAYOUT.records(b"".join(self.pool.logs()))
        last: Records = records[records["epoch"] == (epochs[-1].number if epochs else 0)]
        return last

    def logs(self) -> Iterator[tuple[int, str, Records]]:
        """List the last batches of each segment, with the loader's number and its label."""
        for log in self.pool.logs():
            yield self.pool.number, self.pool.label, LAYOUT.records(log)

    def held(self) -> list[Held]:
        """List the batches that still occupy a slot."""
        return self.pool.held()

    def started_here(self) -> Any:
        """Return the iterator that was started ahead, unless a parent of this process did it."""
        if getattr(self.started, "is_of_another_process", False):
            self.started = None
        return self.started

    def _end_start(self) -> None:
        """Undo a start of an epoch ahead."""
        started, self.started = self.started_here(), None
        if isinstance(started, RingIterator):
            started._shutdown_workers()

    def close(self, loader: Any) -> None:
        """Stop all workers and free all shared memory that no batch in use lies in."""
        for reference in self._iterators.valuerefs():
            iterator = reference()
            if iterator is not None:
                iterator._shutdown_workers()
        if isinstance(loader._iterator, RingIterator):
            loader._iterator = None
        self.started = None
        self.pool.clear()


def _caches_of(loader: Any) -> list[Any]:
    return caches_in(loader.dataset) if _MAY_CACHE else []


def _shape_of(loader: Any, options: Options) -> Shape:
    # torch sets prefetch_factor if there are workers.
    return shape_of(
        int(loader.num_workers),
        int(loader.prefetch_factor or 0),
        options.slots,
        options.slot_bytes,
        options.ring_bytes,
        options.device.prefetch if options.device and options.device.copies else 0,
    )


def why_unserved(loader: Any) -> str | None:
    """Say why the workers of a loader cannot fill slots; None if they can."""
    context = loader.multiprocessing_context
    process = getattr(context, "Process", None)
    if isinstance(process, type) and issubclass(process, threading.Thread):
        return (
            f"the workers of {type(context).__name__} are threads, and slots are filled by "
            "processes: use multiprocessing_context='fork', 'spawn' or 'forkserver' (with MONAI, "
            "use_thread_workers=False), or torch's own loader"
        )
    return None

"""What serves one loader where there are slots: its segments, and the iterators that use them."""

import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from shmloader.memory import limits, page_locks, policy, sending
from shmloader.memory.account import living
from shmloader.memory.segment import Shape, default_ring_bytes, shape_of
from shmloader.memory.segment_pool import LAYOUT, SegmentPool
from shmloader.options import rules
from shmloader.options.options import Options, most_workers
from shmloader.order.order import Order
from shmloader.processes import scheduling
from shmloader.samples.skip_errors import left_out_here
from shmloader.setup.components import has_component
from shmloader.stats import Epoch, Held, Stats
from shmloader.stats.layout import Records
from shmloader.stats.setting import DYNAMIC, Setting
from shmloader.stats.timeline import Timeline, timeline_over
from shmloader.trainer import forewarning, opening
from shmloader.trainer.iterator import RingIterator
from shmloader.trainer.parts import Parts
from shmloader.trainer.taken import Taken
from shmloader.trainer.without_workers import ServiceWithoutWorkers, why_unserved

_MAY_CACHE = has_component("data")
if _MAY_CACHE:
    from shmloader.data.cache import caches_in

sending.install()

Evidence = tuple[Epoch, Timeline, Setting]  # what a report judges


class Service(ServiceWithoutWorkers):
    """Makes the iterators of one loader, of our class or of torch's, and counts for all."""

    def __init__(self, keep_pages: bool = True) -> None:
        super().__init__()
        self.pool = SegmentPool(keep_pages)
        self.attached: tuple[Any, ...] = ()  # more parts of the iterators that are made from now on
        self.taken = Taken()  # the dataset, as persistent workers took it
        # By id: another thread may add one while these are listed, which a WeakSet does not bear.
        self._iterators: weakref.WeakValueDictionary[int, RingIterator]
        self._iterators = weakref.WeakValueDictionary()

    def begin_with(self, workers: Any, most: int) -> None:
        """Begin with so many workers, if it is a number and fewer than the most."""
        # A loader that is made again from its attributes says the most, and nothing.
        if not isinstance(workers, str) and workers != most:
            self.live_workers = min(int(workers), most)

    @property
    def live_workers(self) -> int:
        """How many workers were found to be right; 0: that is not known."""
        return self.pool.learnt_workers

    @live_workers.setter
    def live_workers(self, workers: int) -> None:
        self.pool.learnt_workers = workers

    def _live_record(self, loader: Any) -> Any:
        # A copy of a loader whose workers live on shares their iterator.
        live = loader._iterator
        return live._order.place.record if isinstance(live, RingIterator) else None

    def iterate(self, loader: Any, options: Options) -> RingIterator:
        """Start an iterator of a loader with workers, as torch's `_get_iterator` does."""
        reason = why_unserved(loader)
        if reason:
            raise TypeError(reason)
        forewarning.check_worker_number(loader, loader.check_worker_number_rationality)
        rules.check(loader, options)
        forewarning.tell(loader, options.is_auto)
        sending.install()  # again: torch's init_reductions() takes it away
        shape = _shape_of(loader, options)
        self.pool.label = type(loader.dataset).__name__
        self.pool.about = self.setting(loader, options).to_bytes()
        self._look_back(loader)
        place = self._place(loader, options)
        order = Order(loader._index_sampler, place, is_packed=True)
        parts = Parts(place, self.taken, *self.attached)
        iterator = self._made(
            place, lambda: RingIterator(loader, options, self.pool, shape, order, parts)
        )
        self._iterators[id(iterator)] = iterator
        return iterator

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
        slots = self.pool.likely_slots(shape)
        return Setting(
            workers=(options.is_auto and self.live_workers) or shape.workers,
            most_workers=options.max_workers or 0,
            prefetch_factor=depth,
            in_order=bool(loader.in_order),
            assignment=DYNAMIC if options.is_auto else options.assignment,
            may_be_dynamic=rules.may_be_dynamic(loader, options),
            may_have_threads=rules.may_have_threads(loader, options),
            slots=slots,
            chosen_slots=options.slots,
            extra_slots=max(0, by_default.slots - ahead),
            spare=slots - policy.reserved_slots(ahead, shape.workers, slots),
            ring_bytes=shape.ring_bytes,
            most_bytes=default_ring_bytes(),
            cores=scheduling.cores(),
            ranks=limits.ranks(),
            persistent=bool(loader.persistent_workers),
            start=opening.start_of(loader, options),
            changed=self.pool.last_change,
        )

    def last_epoch(self, setting: Setting) -> Evidence | None:
        """Take what a report needs of the last epoch; None if none was run with workers."""
        return next(self.epochs(setting), None)

    def epochs(self, setting: Setting) -> Iterator[Evidence]:
        """List the epochs, the last one first, with batches and setting; the loader may be gone."""
        setting = setting.grown_to(self.pool.most_slots())
        records = LAYOUT.records(b"".join(self.pool.logs()))
        for epoch in reversed(self.pool.history.epochs()):
            yield epoch, timeline_over(records, LAYOUT, epoch.number), setting

    def logs(self) -> Iterator[tuple[int, str, Records]]:
        """List the last batches of each segment, with the loader's number and its label."""
        for log in self.pool.logs():
            yield self.pool.number, self.pool.label, LAYOUT.records(log)

    def held(self) -> list[Held]:
        """List the batches that still occupy a slot."""
        return self.pool.held()

    def _end_start(self) -> None:
        started, self.started = self.started_here(), None
        if isinstance(started, RingIterator):
            started._shutdown_workers()

    def close(self, loader: Any) -> None:
        """Stop all workers and free all shared memory that no batch in use lies in."""
        for iterator in living(self._iterators):
            iterator.close()
        if isinstance(loader._iterator, RingIterator):
            loader._iterator = None
        self.started = None
        self.pool.clear()
        page_locks.look_at_idle()


def _caches_of(loader: Any) -> list[Any]:
    return caches_in(loader.dataset) if _MAY_CACHE else []


def _shape_of(loader: Any, options: Options) -> Shape:
    # torch sets prefetch_factor if there are workers.
    return shape_of(
        most_workers(loader, options),
        int(loader.prefetch_factor or 0),
        options.slots,
        options.slot_bytes,
        options.ring_bytes,
        _slots_of_copies(loader, options),
    )


def _slots_of_copies(loader: Any, options: Options) -> int:
    """Count the slots that wait for copies to a device, besides the others."""
    if options.device and options.device.copies:
        return options.device.prefetch
    pins = loader.pin_memory and torch.accelerator.is_available()
    return policy.FENCED_AHEAD_SLOTS if pins else 0

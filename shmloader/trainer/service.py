"""What serves one loader: its segments, and the iterators that use them."""

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch.utils.data

from shmloader.core import view_layout
from shmloader.data.caches import caches_in
from shmloader.errors import at_users_line, warn
from shmloader.memory import limits, sending
from shmloader.memory.pool import SegmentPool
from shmloader.memory.segment import Shape, default_ring_bytes
from shmloader.metrics import Epoch, Held, Report, Stats
from shmloader.metrics.case import Setting
from shmloader.metrics.layout import Layout
from shmloader.metrics.picture import draw
from shmloader.metrics.report import growth_lines, is_enough, report_on
from shmloader.metrics.timeline import Timeline, timeline_of, timeline_over
from shmloader.metrics.trace import Traced
from shmloader.processes import scheduling
from shmloader.trainer import budget, together
from shmloader.trainer.iterator import RingIterator
from shmloader.trainer.options import CPU, DYNAMIC, Options
from shmloader.trainer.resuming.record import Record
from shmloader.trainer.resuming.resumption import Resumption
from shmloader.trainer.resuming.samplers import epoch_of
from shmloader.trainer.resuming.states import read
from shmloader.trainer.single import SingleIterator

LAYOUT = Layout(view_layout())

Evidence = tuple[Epoch, Timeline, Setting]  # what `report_on` takes


class Service:
    """
    Makes the iterators of one loader, which is of our class or of torch's, and counts for all.

    Attributes:
        pool: The loader's segments.
    """

    def __init__(self, keep_pages: bool = True) -> None:
        """Have no segment and no iterator yet."""
        self.pool = SegmentPool(keep_pages)
        # By id: another thread may add one while these are listed, which a WeakSet does not bear.
        self._iterators: weakref.WeakValueDictionary[int, RingIterator]
        self._iterators = weakref.WeakValueDictionary()
        self._record: Record | None = None  # the last iterator's
        self._loaded: Resumption | None = None  # for the next one
        self._resumed_at: int | None = None  # the sampler's epoch where the last one went on

    def iterate_here(self, loader: Any, options: Options) -> SingleIterator:
        """Start an iterator of a loader without workers."""
        together.check(loader, options)
        self._look_back(loader)
        iterator = SingleIterator(loader, options, self._loaded)
        self._loaded, self._record = None, iterator.record
        return iterator

    def state_dict(
        self, loader: Any, options: Callable[[], Options], *, is_ahead: bool = False
    ) -> dict[str, Any]:
        """
        Say where the loader is; what was loaded and not begun is where it is.

        Args:
            is_ahead: The loop has not seen the last batch, until the epoch is over.
        """
        if self._loaded is not None:
            return self._loaded.state.copy()
        if self._record is None:
            self._record = Record(loader, options())
        return self._record.state_before() if is_ahead else self._record.state_dict()

    def load_state_dict(self, loader: Any, options: Options, state: Any) -> int | None:
        """
        Have the next iterator go on from a state.

        Returns:
            The sampler's epoch then; None if it has none.

        Raises:
            ValueError, TypeError: It cannot; nothing has changed.
        """
        self._loaded = Resumption(loader, options, read(state)) if state != {} else None
        self._record = None
        # One whose workers live on would begin its next epoch where it is itself.
        loader._iterator = None
        return None if self._loaded is None else self._loaded.sampler_epoch

    def iterate(
        self, loader: Any, options: Options, kind: type[RingIterator] = RingIterator
    ) -> RingIterator:
        """
        Start an iterator of a loader with workers, as torch's `_get_iterator` does.

        Args:
            loader: A `torch.utils.data.DataLoader` with `num_workers > 0`.
            options: Those of the loader now.
            kind: The iterator's class.

        Raises:
            TypeError: The workers are threads.
            ValueError: Options that were changed do not go together.
        """
        reason = why_unserved(loader)
        if reason:
            raise TypeError(reason)
        at_users_line(loader.check_worker_number_rationality, torch.utils.data.DataLoader)
        together.check(loader, options)
        sending.install()  # again: torch's init_reductions() takes it away
        shape = _shape_of(loader, options)
        self.pool.about = {
            "label": type(loader.dataset).__name__,
            "prefetch_factor": int(loader.prefetch_factor or 0),
            "in_order": bool(loader.in_order),
            "chosen_slots": options.slots or 0,
            "is_dynamic": options.assignment == DYNAMIC,
            "may_be_dynamic": together.may_be_dynamic(loader, options),
            "may_have_threads": together.may_have_threads(loader, options),
            "is_nice": options.nice > 0,
        }
        for cache in caches_in(loader.dataset):
            cache.note_user(self.pool.number)
        self._look_back(loader)
        iterator = kind(loader, options, self.pool, shape, self._loaded)
        self._loaded, self._record = None, iterator.record
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
        caches = tuple(cache.cache_stats() for cache in caches_in(loader.dataset))
        return replace(self.pool.stats(), caches=caches)

    def report(self, loader: Any, options: Options) -> Report:
        """Judge the last epoch; the options are those that it was run with."""
        epochs = self.pool.history.epochs()
        if not epochs or loader.num_workers == 0:
            return report_on(None, None, None)
        timeline = timeline_of(self.pool.logs(), LAYOUT, epochs[-1].number)
        report = report_on(epochs[-1], timeline, self.setting(loader, options))
        grows = growth_lines(self.pool.growth, options.worker_bytes)
        return replace(report, lines=(*report.lines, *grows))

    def setting(self, loader: Any, options: Options) -> Setting:
        """Say what a loader with workers is run with."""
        shape = _shape_of(loader, options)
        slots = self._slots_now(shape.slots, options.slots)
        depth = int(loader.prefetch_factor)
        return Setting(
            workers=shape.workers,
            prefetch_factor=depth,
            in_order=bool(loader.in_order),
            assignment=options.assignment,
            may_be_dynamic=together.may_be_dynamic(loader, options),
            may_have_threads=together.may_have_threads(loader, options),
            is_nice=options.nice > 0,
            slots=slots,
            chosen_slots=options.slots,
            ring_bytes=shape.ring_bytes,
            cores=scheduling.cores(),
            ranks=limits.ranks(),
            persistent=bool(loader.persistent_workers),
            spare=budget.spare_slots(shape.workers, depth, slots),
            most_bytes=default_ring_bytes(),
        )

    def _slots_now(self, slots: int, chosen: int | None) -> int:
        """How many slots there are; more than at the start if the loader chose, and needed them."""
        counts = self.pool.stats().slots
        in_use = sum(counts[name] for name in ("free", "placed", "ready", "leased") if counts)
        return max(slots, in_use) if chosen is None else slots

    def evidence(self, setting: Setting) -> Evidence | None:
        """
        Take what a report needs of the last epoch that is long enough, to judge it later.

        Args:
            setting: What `setting` returned; the loader need not live any more.
        """
        slots = self._slots_now(setting.slots, setting.chosen_slots)
        setting = replace(setting, slots=slots)
        records = LAYOUT.records(b"".join(self.pool.logs()))
        for epoch in reversed(self.pool.history.epochs()):
            timeline = timeline_over(records, LAYOUT, epoch.number)
            if is_enough(timeline, setting):
                return epoch, timeline, setting
        return None

    def draw(self, path: str | os.PathLike[str], title: str) -> None:
        """Draw the waits and fetches of the last epoch's batches."""
        epochs = self.pool.history.epochs()
        number = epochs[-1].number if epochs else 0
        records = LAYOUT.records(b"".join(self.pool.logs()))
        draw(path, records[records["epoch"] == number], title)

    def traced(self) -> list[Traced]:
        """List the last batches of each segment, for a trace."""
        pool = self.pool
        return [
            Traced(pool.number, pool.about["label"], LAYOUT.records(log)) for log in pool.logs()
        ]

    def held(self) -> list[Held]:
        """List the batches that still occupy a slot."""
        return self.pool.held()

    def close(self, loader: Any) -> None:
        """Stop all workers and free all shared memory that no batch in use lies in."""
        for reference in self._iterators.valuerefs():
            iterator = reference()
            if iterator is not None:
                iterator._shutdown_workers()
        if isinstance(loader._iterator, RingIterator):
            loader._iterator = None
        self.pool.clear()


def _shape_of(loader: Any, options: Options) -> Shape:
    # torch sets prefetch_factor if there are workers.
    return budget.shape_of(
        int(loader.num_workers),
        int(loader.prefetch_factor or 0),
        options.slots,
        options.slot_bytes,
        options.ring_bytes,
        0 if options.device in (None, CPU) else options.prefetch_to_device,
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

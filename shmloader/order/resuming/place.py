"""
The place of one iterator in its order: noted for the states of its loader, and gone on from.

It is a part of the iterator, whose hooks it has. All that an iterator does for a state is here,
with workers or without.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils.data import IterDataPipe
from torch.utils.data.dataloader import _share_dist_seed

from shmloader.options.options import Options
from shmloader.order.order import NoPlace
from shmloader.order.resuming.checkpoint import Record
from shmloader.order.resuming.drawing import Apart
from shmloader.order.resuming.generators import Pinned
from shmloader.order.resuming.resumption import Resumption, share_seed
from shmloader.worker.snapshot import Position


class Place(NoPlace):
    """
    Where one iterator is.

    It does not refer to its order, which refers to this: what it draws from would wait for the
    collector.
    """

    def __init__(self, loader: Any, options: Options, loaded: Resumption | None) -> None:
        """Begin at the start of an epoch, or where the state says that was loaded."""
        self.record = Record(loader, options)
        self._has_workers = loader.num_workers > 0
        self._sampler = loader._index_sampler
        self._loaded = loaded
        self._pinned: Pinned | None = None
        self._is_made = False

    def generator_states(self) -> list[tuple[Any, Any]]:
        """Return the generators that a new iterator may draw from, each with its state of now."""
        states: list[tuple[Any, Any]] = self.record.generators.states()
        return states

    def as_noted(self) -> AbstractContextManager[Any]:
        """Have the generators as they were noted, while an iterator is made."""
        loaded = self._loaded
        if loaded is None:
            return nullcontext()
        if not self._has_workers:
            loaded.tell_epoch(self._sampler)  # before its only iterator is made
        self._pinned = loaded.pinned(keeps_draws=not loaded.is_in_epoch)
        return self._pinned

    def watch(self, iterator: Any) -> Any:
        """Find out if the sampler or its iterator has a state, before anything is drawn."""
        stateful, delivered = self.record.stateful, self.record.delivered
        stateful.watch(iterator)
        if not stateful.is_here or delivered is None:
            return None
        if delivered.sampler is None:
            delivered.start(stateful.state())
        return stateful.note

    def note_empty(self) -> None:
        """Note where the sampler is at an end before which it had nothing to draw."""
        delivered = self.record.delivered
        state = self.record.stateful.state(is_at_end=True)
        if state is not None and delivered is not None:
            delivered.start(state, delivered.low)

    # Hooks of an iterator's parts

    def made(self, iterator: Any, loader: Any) -> None:
        """Get the seeds and the place in the sampler from the state, before any worker starts."""
        loaded, pinned = self._loaded, self._pinned
        self._is_made, order = True, iterator._index_sampler
        if loaded is None or pinned is None:
            return
        if loaded.keeps_base_seed:
            if not loaded.seeds_stay_drawn:
                pinned.rewind()  # what was drawn above is drawn again with the indices
            iterator._base_seed = loaded.base_seed(int(iterator._base_seed))
            if not loaded.is_in_epoch:
                loaded.shared_seed = _next_shared_seed(iterator, loader.generator)
            share_seed(iterator, loaded.shared_seed)
        loaded.tell_epoch(self._sampler)
        drawn = loaded.draw(self._sampler, self.record.stateful, loader.generator)
        if drawn is not None:
            order.restore(drawn.requests, drawn.iterator)
        elif not self._has_workers and not loaded.is_in_epoch and pinned.is_apart:
            # It may draw at its first index, when the default generator is put back.
            requests = iter(order)
            order.restore(Apart(requests), requests)

    def opened(self, tasks: Any) -> None:
        """Have the workers go on from the state."""
        loaded = self._loaded
        if loaded is not None:
            tasks.resume(loaded.epoch_before, loaded.latest(), loaded.pasts())

    def begin(self, epoch: Any) -> None:
        """Note what the epoch's indices are drawn from, just before its sampler is iterated."""
        loaded = self._loaded
        if loaded is None or not (loaded.is_in_epoch and self._is_made):
            # Without workers the base seed is drawn after this.
            self.record.begin(epoch.delivered, epoch.number, seeds_later=not self._has_workers)
            return
        workers = len(epoch.delivered.by_worker) if self._has_workers else 0
        epoch.delivered = loaded.delivered(workers)
        epoch.first_worker = loaded.first_worker
        epoch.number = int(loaded.state.epoch)
        self.record.go_on(loaded.state, epoch.delivered)

    def begun(self, epoch: Any) -> None:
        """Note where the workers are now that all have begun the epoch."""
        loaded, self._loaded = self._loaded, None
        record, seed = self.record, epoch.shared_seed
        record.base_seed = int(epoch.base_seed)
        record.shared_seed = -1 if seed is None else int(seed)
        record.published = epoch.snapshots
        in_epoch = loaded is not None and loaded.is_in_epoch
        record.begun = loaded.begun() if loaded and in_epoch else list(record.published)

    def over(self) -> None:
        """Note that the next state is of the epoch's end."""
        self.record.is_over = True

    # The dataset, without workers

    def position_here(self) -> Position:
        """Where the dataset of an iterator without workers goes on."""
        return Position() if self._loaded is None else self._loaded.position_here()

    @property
    def is_in_epoch(self) -> bool:
        """True if a state is gone on from, with the rest of an epoch."""
        return self._loaded is not None and self._loaded.is_in_epoch


def _next_shared_seed(iterator: Any, generator: torch.Generator | None) -> int | None:
    """Return what torch will draw for the data pipes of the epoch that is about to begin."""
    if not isinstance(iterator._dataset, IterDataPipe):
        return None
    source = torch.default_generator if generator is None else generator
    before = source.get_state()
    seed = int(_share_dist_seed(generator, iterator._pg))
    source.set_state(before)
    return seed

"""One epoch without workers: torch's own, whose place is known; draws by the batch if wanted."""

import functools
from collections.abc import Iterator
from typing import Any

from torch.utils.data import _DatasetKind
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from shmloader import draws
from shmloader.core import Delivered, Indices, Samples
from shmloader.errors import at_users_line
from shmloader.trainer.options import BY_BATCH, Options
from shmloader.trainer.resuming import telling
from shmloader.trainer.resuming.record import Record
from shmloader.trainer.resuming.resumption import Resumption, share_seed
from shmloader.trainer.resuming.samplers import Apart, Drawn
from shmloader.trainer.ways_out import without_workers
from shmloader.worker import restoring, snapshot
from shmloader.worker.loop import is_fetched_singly
from shmloader.worker.seeds import SeededFetcher, listed
from shmloader.worker.snapshot import Position

_TORCHS = "_SingleProcessDataLoaderIter"  # found by tools that look at profiles


class SingleIterator(_SingleProcessDataLoaderIter):
    """
    torch's own iterator for `num_workers=0`.

    With `seed_by="batch"` its batches are those of any number of workers.
    """

    # torch sets them, and declares no types.
    _base_seed: Any
    _dataset: Any
    _dataset_fetcher: Any
    _profile_name: str
    _sampler_iter: Any
    _shared_seed: Any

    def __init__(self, loader: Any, options: Options, resumption: Resumption | None = None) -> None:
        # First: a device that is not there costs no draw.
        self._to_device = without_workers(options)
        self._task = 0
        self._by_batch = options.seed_by == BY_BATCH
        self.record = Record(loader, options)
        self._delivered = Delivered(0, loader._dataset_kind != _DatasetKind.Iterable)
        if resumption is not None:
            resumption.finish(loader._index_sampler, self.record.stateful, loader.generator)
        if resumption is not None and not resumption.is_in_epoch:
            self._restore_between(loader.dataset, resumption)
        if resumption is not None:
            resumption.tell_epoch(loader._index_sampler)
        pinned = None if resumption is None else resumption.pinned()
        if pinned is not None:
            pinned.enter()
        try:
            # What is noted here is what is drawn from in the next line.
            self.record.begin(self._delivered, 0, seeds_later=True)
            super().__init__(loader)
            if resumption is not None and pinned is not None and resumption.is_in_epoch:
                if self._dataset_kind != _DatasetKind.Iterable:
                    pinned.rewind()  # what was drawn above is drawn again with the indices
                self._go_on(loader, resumption)
            elif pinned is not None and pinned.is_apart:
                # It may draw at its first index, when the default generator is put back.
                requests = self._sampler_iter
                self._sampler_iter = Drawn(Apart(requests), requests)
        finally:
            if resumption is not None and pinned is not None:
                pinned.leave(keeps_draws=not resumption.is_in_epoch)
        self._profile_name = f"enumerate(DataLoader)#{_TORCHS}.__next__"
        self._dataset_fetcher = self._seeding(self._dataset_fetcher)
        if resumption is not None and resumption.is_in_epoch:
            self._restore_dataset(resumption)
        self._enter_record(self.record)

    def _go_on(self, loader: Any, resumption: Resumption) -> None:
        """Get the seeds and the place in the sampler from a state."""
        self._base_seed = resumption.base_seed(int(self._base_seed))
        share_seed(self, resumption.shared_seed)
        stateful = self.record.stateful
        drawn = resumption.draw(self._index_sampler, stateful, loader.generator)
        if drawn is not None:
            self._sampler_iter = drawn
        self._delivered = resumption.delivered(0, stateful)
        self.record.go_on(resumption.state, self._delivered)
        self._num_yielded = self._delivered.count

    def _enter_record(self, record: Record) -> None:
        record.base_seed = int(self._base_seed)
        record.shared_seed = -1 if self._shared_seed is None else int(self._shared_seed)
        self._stateful = record.stateful
        iterator = self._sampler_iter
        self._stateful.watch(iterator.iterator if type(iterator) is Drawn else iterator)
        if self._stateful.is_here and self._delivered.sampler is None:
            self._delivered.start(self._stateful.state())
        is_iterable = self._dataset_kind == _DatasetKind.Iterable
        # The record must not keep this iterator alive, nor what it fetches with unless it is asked.
        dataset, fetcher = self._dataset, self._dataset_fetcher
        own = fetcher.dataset_iter if is_iterable else None
        if snapshot.is_stateful(dataset) or snapshot.is_stateful(own):
            record.ask = lambda: _ask(dataset, fetcher if is_iterable else None)

    # Batches

    def _next_index(self) -> Any:
        index = super()._next_index()  # type: ignore[no-untyped-call]
        task, self._task = self._task, self._task + 1
        self._delivered.draw(task, index, self._stateful.state(index))
        self._delivered.take(task, 0)
        return list(index) if type(index) is Indices else index  # as torch's samplers draw

    def _next_data(self) -> Any:
        batch = super()._next_data()  # type: ignore[no-untyped-call]
        return batch if self._to_device is None else self._to_device(batch)

    def __next__(self) -> Any:
        length = self._IterableDataset_len_called
        try:
            if length is None or self._num_yielded < length:
                batch = super().__next__()
            else:
                batch = at_users_line(super().__next__)  # where torch may warn of too many
        except StopIteration:
            self._delivered.put_back()
            self.record.is_over = True
            raise
        except Exception:
            self._delivered.hand_out()  # the error is what came of that batch
            raise
        except BaseException:
            self._delivered.put_back()
            raise
        self._delivered.hand_out()
        return batch

    # The dataset

    def _seeding(self, fetcher: Any) -> Any:
        if not self._by_batch:
            return fetcher
        is_iterable = self._dataset_kind == _DatasetKind.Iterable
        watches = self._auto_collation and is_fetched_singly(self._dataset, is_iterable)
        return _Aside(fetcher, int(self._base_seed), watches, self.record.epoch, self._delivered)

    @staticmethod
    def _restore_between(dataset: Any, resumption: Resumption) -> None:
        """Give a dataset the state that it had between two epochs, before the next one begins."""
        state = resumption.position_here().dataset
        if state is not None:
            dataset.load_state_dict(state)

    def _restore_dataset(self, resumption: Resumption) -> None:
        """Bring the dataset to where it was, and leave the training's generators to themselves."""
        position = resumption.position_here()
        has_state = restoring.has_state(position)
        if not has_state and not position.attempts and not position.has_ended:
            return
        before = draws.random_states()
        try:
            self._dataset_fetcher = restoring.enter_epoch(
                self._dataset, position, functools.partial(self._begin_at, position)
            )
            if not has_state:
                restoring.replay(self._fetch_again, position, telling.of_dataset().tell)
        finally:
            # What the dataset restored of them stays.
            if not has_state:
                draws.set_random_states(before)

    def _begin_at(self, position: Position) -> Any:
        if position.dataset is None or isinstance(self._dataset, Iterator):
            return self._dataset_fetcher  # begun: its dataset may count how often that is done
        fetcher = _DatasetKind.create_fetcher(
            self._dataset_kind,
            self._dataset,
            self._auto_collation,
            self._collate_fn,
            self._drop_last,
        )
        return self._seeding(fetcher)

    def _fetch_again(self, attempt: int, index: Any) -> Any:
        if not self._by_batch:
            return self._dataset_fetcher.fetch(index)
        return self._dataset_fetcher.fetch_numbered((self.record.epoch, attempt), index)


def _ask(dataset: Any, fetcher: Any) -> tuple[Any, Any, bool]:
    """
    The states of a dataset and of its iterator, and whether that ended within a batch.

    Args:
        fetcher: Of an iterable dataset; otherwise None.
    """
    if fetcher is None:
        return snapshot.state_of(dataset), None, False
    iterator = fetcher.dataset_iter
    own = snapshot.state_of(iterator) if iterator is not dataset else None
    return snapshot.state_of(dataset), own, bool(fetcher.ended)


class _Aside(SeededFetcher):
    """Fetches one batch after the other, and leaves the training's generators as they were."""

    def __init__(
        self, fetcher: Any, base_seed: int, watches: bool, epoch: int, delivered: Delivered
    ) -> None:
        super().__init__(fetcher, base_seed)
        self._watches = watches
        self._epoch = epoch
        self._delivered = delivered
        self._task = 0

    def fetch(self, index: Any) -> Any:
        task, self._task = self._task, self._task + 1
        return self.fetch_numbered((self._epoch, self._delivered.number_of(task)), index)

    def fetch_numbered(self, numbers: tuple[int, int], index: Any) -> Any:
        before = draws.random_states()
        try:
            request = Samples(listed(index)) if self._watches else index
            return self.fetch_as(numbers, request)
        finally:
            draws.set_random_states(before)

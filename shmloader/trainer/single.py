"""One epoch without workers: torch's own, whose place is known; draws by the batch if wanted."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import _DatasetKind
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from shmloader.core import Delivered, HandsOut, Indices, InHand, Samples
from shmloader.errors import EmptyBatch, at_users_line
from shmloader.options.options import BY_BATCH, Options
from shmloader.order.order import DrawsFromOrder, Order
from shmloader.samples import random_state, skip_errors
from shmloader.trainer.epoch import CurrentEpoch, Start
from shmloader.trainer.parts import Parts
from shmloader.transport.delivery import transformed
from shmloader.worker import restoring, snapshot
from shmloader.worker.seeds import SeededFetcher, listed
from shmloader.worker.snapshot import Position

_TORCHS = "_SingleProcessDataLoaderIter"  # found by tools that look at profiles


class SingleIterator(HandsOut, DrawsFromOrder, _SingleProcessDataLoaderIter):
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

    _turn = _generation = None  # as torch's: a thread's own, and a forked child goes on

    def __init__(self, loader: Any, options: Options, order: Order, parts: Parts) -> None:
        """Begin as torch's does, and bring the dataset to where the order is."""
        # First: a device that is not there costs no draw.
        self._to_device = _way_to_device(options)
        self._hand = InHand()
        self._by_batch = options.seed_by == BY_BATCH
        self._order, self.parts = order, parts
        self._epoch, place = CurrentEpoch(loader, 0, Start.now(), workers=0), order.place
        with place.as_noted():
            self._begin()
            super().__init__(loader)
            for made in parts.made:
                made(self, loader)
            if place.is_in_epoch:
                self._begin()
                self._num_yielded += self._delivered.count
            if self._order.is_restored:
                self._sampler_iter = iter(self._order)
        self._profile_name = self._profile_name.replace("SingleIterator", _TORCHS)
        self._dataset_fetcher = self._prepared(self._dataset_fetcher)
        if place.is_in_epoch:
            self._restore_dataset(place.position_here())
        self._epoch.base_seed, self._epoch.shared_seed = int(self._base_seed), self._shared_seed
        for begun in parts.begun:
            begun(self._epoch)

    def _begin(self) -> None:
        for begin in self.parts.begin:
            begin(self._epoch)
        self._delivered = self._epoch.delivered

    def dataset_to_ask(self) -> Callable[[], tuple[Any, Any, bool]] | None:
        """Return what asks for the states of the dataset and its iterator; None if it has none."""
        is_iterable = self._dataset_kind == _DatasetKind.Iterable
        # A record must not keep this iterator alive, nor what it fetches with unless it is asked.
        dataset, fetcher = self._dataset, self._dataset_fetcher
        own = fetcher.dataset_iter if is_iterable else None
        if snapshot.is_stateful(dataset) or snapshot.is_stateful(own):
            return lambda: _ask(dataset, fetcher if is_iterable else None)
        return None

    # Batches

    def _next_index(self) -> Any:
        hand = self._delivered.draw_in_hand(self._sampler_iter, self._order)
        index, hand.batch = hand.batch, None
        self._hand = hand
        return list(index) if type(index) is Indices else index  # as torch's samplers draw

    def _next_data(self) -> Any:
        try:
            batch = self._next_with_samples()
            return batch if self._to_device is None else self._to_device(batch)
        except StopIteration:
            raise  # of no batch, and kept it would tie a cycle
        except Exception as error:
            self._hand.error = error  # it is what came of the batch
            raise

    def _next_with_samples(self) -> Any:
        while True:
            try:
                return super()._next_data()  # type: ignore[no-untyped-call]
            except EmptyBatch:
                self._hand.leave_out()  # a state that is taken now goes on behind it

    def _make(self) -> InHand:
        """Have the next batch in hand, or the error in its place."""
        outer, self._hand = self._hand, InHand()  # a signal's handler may ask in the middle of it
        outer.batch = None  # of one that an interrupt has lost
        try:
            self._hand.batch = self._next()
        except StopIteration:
            for over in self.parts.over:
                over()
            raise
        except Exception as error:
            if error is not self._hand.error:
                raise
        finally:
            hand, self._hand = self._hand, outer
        return hand

    def _next(self) -> Any:
        length = self._IterableDataset_len_called
        torchs_next = super(HandsOut, self).__next__
        if length is None or self._num_yielded < length:
            return torchs_next()
        return at_users_line(torchs_next)  # where torch may warn of too many

    # The dataset

    def _prepared(self, fetcher: Any) -> Any:
        if not self._auto_collation:
            fetcher.dataset = skip_errors.single(fetcher.dataset)
        if not self._by_batch:
            return fetcher
        is_iterable = self._dataset_kind == _DatasetKind.Iterable
        watches = self._auto_collation and skip_errors.is_fetched_singly(self._dataset, is_iterable)
        return _Aside(fetcher, int(self._base_seed), watches, self._epoch.number, self._delivered)

    def _restore_dataset(self, position: Position) -> None:
        """Bring the dataset to where it was, and leave the training's generators to themselves."""
        has_state = restoring.has_state(position)
        if not has_state and not position.attempts and not position.has_ended:
            return
        before = random_state.random_states()
        try:
            self._dataset_fetcher = restoring.enter_epoch(
                self._dataset, position, functools.partial(self._begin_at, position)
            )
            if not has_state:
                restoring.replay(self._fetch_again, position)
        finally:
            # What the dataset restored of them stays.
            if not has_state:
                random_state.set_random_states(before)

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
        return self._prepared(fetcher)

    def _fetch_again(self, attempt: int, index: Any) -> Any:
        if not self._by_batch:
            return self._dataset_fetcher.fetch(index)
        return self._dataset_fetcher.fetch_numbered((self._epoch.number, attempt), index)


def _ask(dataset: Any, fetcher: Any) -> tuple[Any, Any, bool]:
    """The states of a dataset and its iterator, and if that ended; fetcher: of iterables."""
    if fetcher is None:
        return snapshot.state_of(dataset), None, False
    iterator = fetcher.dataset_iter
    own = snapshot.state_of(iterator) if iterator is not dataset else None
    return snapshot.state_of(dataset), own, restoring.has_ended(fetcher)


class _Aside(SeededFetcher):
    """Fetches one batch after the other, and leaves the training's generators as they were."""

    def __init__(
        self, fetcher: Any, base_seed: int, watches: bool, epoch: int, delivered: Delivered
    ) -> None:
        super().__init__(fetcher, base_seed)
        self._watches = watches
        self._epoch = epoch
        self._delivered = delivered

    def fetch(self, index: Any) -> Any:
        place = self._delivered.number_of(self._delivered.drawn_task)
        return self.fetch_numbered((self._epoch, place), index)

    def fetch_numbered(self, numbers: tuple[int, int], index: Any) -> Any:
        before = random_state.random_states()
        try:
            request = Samples(listed(index)) if self._watches else index
            return self.fetch_as(numbers, request)
        finally:
            random_state.set_random_states(before)


def _way_to_device(options: Options) -> Callable[[Any], Any] | None:
    """Return what brings a batch out of a loader without workers; None: it stays what it is."""
    if options.device is None:
        return None
    if options.device.copies:
        from shmloader.device.in_process import bringing_to  # it may be absent

        return bringing_to(options.device)
    transform = options.device.transform
    return transform and functools.partial(transformed, transform=transform)

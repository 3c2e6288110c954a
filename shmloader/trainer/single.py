"""One epoch without workers, with draws that depend on the batch alone, as workers have them."""

from typing import Any

from torch.utils.data.dataloader import _DatasetKind, _SingleProcessDataLoaderIter

from shmloader import draws
from shmloader.core import Samples
from shmloader.worker.loop import is_fetched_singly
from shmloader.worker.seeds import SeededFetcher, listed


class SeededSingleIterator(_SingleProcessDataLoaderIter):
    """torch's own iterator for `num_workers=0`; its batches are those of any number of workers."""

    def __init__(self, loader: Any) -> None:
        """Begin an epoch of a loader."""
        super().__init__(loader)
        is_iterable = self._dataset_kind == _DatasetKind.Iterable
        watches = self._auto_collation and is_fetched_singly(self._dataset, is_iterable)
        self._dataset_fetcher = _Aside(self._dataset_fetcher, self._base_seed, watches)


class _Aside:
    """Fetches one batch after the other, and leaves the training's generators as they were."""

    def __init__(self, fetcher: Any, base_seed: Any, watches: bool) -> None:
        self._fetcher = SeededFetcher(fetcher, int(base_seed))
        self._watches = watches
        self._number = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fetcher, name)

    def fetch(self, index: Any) -> Any:
        before = draws.random_states()
        number, self._number = self._number, self._number + 1
        try:
            request = Samples(listed(index)) if self._watches else index
            return self._fetcher.fetch_as((0, number), request)
        finally:
            draws.set_random_states(before)

"""DataLoader: torch's, over slots of shared memory; wrap() makes one of any torch loader."""

import weakref
from collections.abc import Callable, Iterable
from multiprocessing.context import BaseContext
from types import TracebackType
from typing import Any, Self, SupportsIndex, TypeVar

import torch.utils.data
from torch.utils.data import Dataset, Sampler
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from shmloader.memory import sending
from shmloader.memory.pool import SegmentPool
from shmloader.metrics import Held, Stats
from shmloader.trainer import budget
from shmloader.trainer.iterator import RingIterator

T = TypeVar("T", covariant=True)

sending.install()

_RING_BYTES_MIN = 1 << 16
_SLOTS_MAX = 1 << 20

# Attributes that live with a process and are not copied or pickled with the loader.
_OF_THIS_PROCESS = ("_segment_pool", "_iterators")


def _check_positive(name: str, value: Any, least: int) -> None:
    if value is not None:
        _check_count(name, value, least, "an int or None")


def _check_count(name: str, value: Any, least: int, kind: str = "an int") -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} should be {kind}, but got {value!r}")
    if value < least:
        raise ValueError(f"{name} should be at least {least}, but got {value}")


class DataLoader(torch.utils.data.DataLoader[T]):
    """
    A torch DataLoader whose workers write batches into shared memory.

    Takes every argument of `torch.utils.data.DataLoader` and behaves like it. With `num_workers=0`
    it is torch's own path.

    Args:
        slots: Number of slots; each holds one batch on its way or in use. Default:
            `prefetch_factor * num_workers + 4`; the 4 serve batches that are held. Fewer only cost
            speed, at least 1.
        slot_bytes: Bytes touched ahead in each slot, so that its first batch adds no pages.
            Default: learnt from the first batch.
        ring_bytes: Ceiling in bytes for what all slots keep. Default: half of the memory. With
            `slots=None` and `slot_bytes` given it bounds the number of slots.
        keep_pages: True keeps the memory for the next epoch, which is what makes it fast. False
            gives it back when an epoch's workers end; `close()` does so at any time.
        restarts: How many deaths of workers are healed in each epoch: another worker takes the
            dead one's place, and every batch comes as it would have. With `timeout`, a worker that
            hangs for longer is killed and replaced too. 0 raises as torch does.

    Raises:
        ValueError, TypeError: As torch's, and for options out of range.

    While iterating:
        BatchTooLarge: A batch needs more than `ring_bytes`.
        OutOfSharedMemory: The machine has no room for a batch's pages.
    """

    def __init__(
        self,
        dataset: Dataset[T],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: BaseContext | str | None = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        slots: int | None = None,
        slot_bytes: int | None = None,
        ring_bytes: int | None = None,
        keep_pages: bool = True,
        restarts: int = 0,
    ) -> None:
        self._set_options(slots, slot_bytes, ring_bytes, keep_pages, restarts)
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )

    def _set_options(
        self,
        slots: int | None,
        slot_bytes: int | None,
        ring_bytes: int | None,
        keep_pages: bool,
        restarts: int,
    ) -> None:
        _check_count("restarts", restarts, 0)
        _check_positive("slots", slots, 1)
        _check_positive("slot_bytes", slot_bytes, 1)
        _check_positive("ring_bytes", ring_bytes, _RING_BYTES_MIN)
        if slots is not None and slots > _SLOTS_MAX:
            raise ValueError(f"slots should be at most {_SLOTS_MAX}, but got {slots}")
        if slot_bytes is not None and ring_bytes is not None and slot_bytes > ring_bytes:
            raise ValueError(
                f"slot_bytes of {slot_bytes} exceeds ring_bytes of {ring_bytes}: raise ring_bytes "
                f"to at least {slot_bytes} or lower slot_bytes"
            )
        self.slots = slots
        self.slot_bytes = slot_bytes
        self.ring_bytes = ring_bytes
        self.keep_pages = keep_pages
        self.restarts = restarts
        self._forget_process()

    def _forget_process(self) -> None:
        self._segment_pool = SegmentPool(self.keep_pages)
        self._iterators: weakref.WeakSet[RingIterator] = weakref.WeakSet()

    def _get_iterator(self) -> Any:
        if self.num_workers == 0:
            return _SingleProcessDataLoaderIter(self)
        self.check_worker_number_rationality()
        # torch sets prefetch_factor if there are workers.
        shape = budget.shape_of(
            self.num_workers,
            self.prefetch_factor or 0,
            self.slots,
            self.slot_bytes,
            self.ring_bytes,
        )
        iterator = RingIterator(self, self._segment_pool, shape)
        self._iterators.add(iterator)
        return iterator

    def stats(self) -> Stats:
        """Count what this loader has done since it was made, over all epochs and live iterators."""
        return self._segment_pool.stats()

    def held(self) -> list[Held]:
        """
        List the batches that still occupy a slot, because something points into it.

        Spilled batches occupy none, and what is held after `close()` is memory of its own that goes
        with the batch.
        """
        return self._segment_pool.held()

    def close(self) -> None:
        """
        Stop all workers and free all shared memory that no batch in use lies in.

        Batches that are held stay valid. Iterating again starts afresh.
        """
        for iterator in list(self._iterators):
            iterator._shutdown_workers()
        self._iterator = None
        self._segment_pool.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        for name in _OF_THIS_PROCESS:
            state.pop(name, None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget_process()


def _class_over(kind: type[torch.utils.data.DataLoader[Any]]) -> type[DataLoader[Any]]:
    """The class of a wrapped loader: ours before its own class."""
    if kind in (torch.utils.data.DataLoader, DataLoader):
        return DataLoader
    if issubclass(kind, DataLoader):
        return kind
    return type(kind.__name__, (DataLoader, kind), {"__reduce_ex__": _reduce_wrapped})


def _reduce_wrapped(loader: DataLoader[Any], protocol: SupportsIndex) -> tuple[Any, ...]:
    # The class was made by wrap() and has no name to be pickled by.
    return _rebuild_wrapped, (type(loader).__bases__[1], loader.__getstate__())


def _rebuild_wrapped(
    kind: type[torch.utils.data.DataLoader[Any]], state: dict[str, Any]
) -> DataLoader[Any]:
    loader = object.__new__(_class_over(kind))
    loader.__setstate__(state)
    return loader


def wrap(
    loader: torch.utils.data.DataLoader[T],
    *,
    slots: int | None = None,
    slot_bytes: int | None = None,
    ring_bytes: int | None = None,
    keep_pages: bool = True,
    restarts: int = 0,
) -> DataLoader[T]:
    """
    Make any torch DataLoader, even of a subclass, deliver through shared memory.

    Neither the dataset nor a sampler is built again: the new loader shares them with the old one.

    Args:
        loader: A `torch.utils.data.DataLoader`.
        slots, slot_bytes, ring_bytes, keep_pages, restarts: As for `DataLoader`.

    Returns:
        A `shmloader.DataLoader` that is also an instance of the given loader's class.

    Raises:
        TypeError: It is no torch DataLoader, or an option is of a wrong type.
        ValueError: An option is out of range.
    """
    if not isinstance(loader, torch.utils.data.DataLoader):
        raise TypeError(
            f"wrap() takes a torch.utils.data.DataLoader, but got {type(loader).__name__}"
        )
    wrapped: DataLoader[T] = object.__new__(_class_over(type(loader)))
    state = {name: value for name, value in vars(loader).items() if name != "_iterator"}
    wrapped.__dict__.update(state, _iterator=None)
    wrapped._set_options(slots, slot_bytes, ring_bytes, keep_pages, restarts)
    return wrapped

"""DataLoader: torch's, over slots of shared memory; wrap() makes one of any torch loader."""

import weakref
from typing import TypeVar

import torch.utils.data
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from shmloader.memory import sending
from shmloader.memory.segment import Shape, Shelf, default_ring_bytes
from shmloader.trainer.iterator import RingIterator

T = TypeVar("T", covariant=True)

sending.install()

# Slots beyond what torch has in flight: for the batches that a training step holds.
_SLOTS_TO_HOLD = 4
_RING_BYTES_MIN = 1 << 16
_SLOTS_MAX = 1 << 20

# Attributes that live with a process and are not copied or pickled with the loader.
_OF_THIS_PROCESS = ("_shelf", "_iterators")


def _check_positive(name, value, least):
    if value is not None:
        _check_count(name, value, least, "an int or None")


def _check_count(name, value, least, kind="an int"):
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
        keep_pages: Whether the memory stays for the next epoch, which is what makes it fast. False
            gives it back when an epoch's workers end; `close()` does so at any time.
        restarts: How many deaths of workers are healed in each epoch: another takes the dead
            one's place, and every batch comes as it would have. With `timeout`, one that hangs for
            longer is killed and healed too. 0 raises as torch does.

    Raises:
        ValueError, TypeError: As torch's, and for options out of range.

    While iterating:
        BatchTooLarge: A batch needs more than `ring_bytes`.
        OutOfSharedMemory: The machine has no room for a batch's pages.
    """

    def __init__(
        self,
        dataset,
        batch_size=1,
        shuffle=None,
        sampler=None,
        batch_sampler=None,
        num_workers=0,
        collate_fn=None,
        pin_memory=False,
        drop_last=False,
        timeout=0,
        worker_init_fn=None,
        multiprocessing_context=None,
        generator=None,
        *,
        prefetch_factor=None,
        persistent_workers=False,
        pin_memory_device="",
        in_order=True,
        slots=None,
        slot_bytes=None,
        ring_bytes=None,
        keep_pages=True,
        restarts=0,
    ):
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
        self, slots=None, slot_bytes=None, ring_bytes=None, keep_pages=True, restarts=0
    ):
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

    def _forget_process(self):
        self._shelf = Shelf(self.keep_pages)
        self._iterators: weakref.WeakSet[RingIterator] = weakref.WeakSet()

    def _segment_shape(self):
        """The counts and bytes that an iterator's segment shall have."""
        ring_bytes = self.ring_bytes or default_ring_bytes()
        slots = self.slots
        if slots is None:
            # torch sets prefetch_factor wherever there are workers.
            slots = (self.prefetch_factor or 0) * self.num_workers + _SLOTS_TO_HOLD
            if self.ring_bytes is not None and self.slot_bytes is not None:
                slots = max(1, min(slots, self.ring_bytes // self.slot_bytes))
        return Shape(self.num_workers, slots, ring_bytes, ring_bytes)

    def _get_iterator(self):
        if self.num_workers == 0:
            return _SingleProcessDataLoaderIter(self)
        self.check_worker_number_rationality()
        iterator = RingIterator(self, self._shelf)
        self._iterators.add(iterator)
        return iterator

    def stats(self):
        """
        Count what this loader has done since it was made.

        Returns:
            A `shmloader.Stats` over all epochs and live iterators.
        """
        return self._shelf.stats()

    def held(self):
        """
        Tell which batches still occupy a slot, because something points into it.

        Returns:
            A list of `shmloader.Held`, one for each. Spilled batches occupy none, and what
            is held after `close()` is memory of its own that goes with the batch.
        """
        return self._shelf.held()

    def close(self):
        """
        Stop all workers and free all shared memory that no batch in use lies in.

        Batches that are held stay valid. Iterating again starts afresh.
        """
        for iterator in list(self._iterators):
            iterator._shutdown_workers()
        self._iterator = None
        self._shelf.clear()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __getstate__(self):
        state = self.__dict__.copy()
        for name in _OF_THIS_PROCESS:
            state.pop(name, None)
        return state

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._forget_process()


def _class_over(kind):
    """The class of a wrapped loader: ours before the one that it had."""
    if kind in (torch.utils.data.DataLoader, DataLoader):
        return DataLoader
    if issubclass(kind, DataLoader):
        return kind
    return type(kind.__name__, (DataLoader, kind), {"__reduce_ex__": _reduce_wrapped})


def _reduce_wrapped(loader, protocol):
    # The class was made by wrap() and has no name to be pickled by.
    return _rebuild_wrapped, (type(loader).__bases__[1], loader.__getstate__())


def _rebuild_wrapped(kind, state):
    loader = object.__new__(_class_over(kind))
    loader.__setstate__(state)
    return loader


def wrap(torch_loader, **options):
    """
    Make any torch DataLoader, of a subclass too, deliver through shared memory.

    Neither the dataset nor a sampler is built again: the new loader shares them with the old one.

    Args:
        torch_loader: A `torch.utils.data.DataLoader`.
        options: `slots`, `slot_bytes`, `ring_bytes`, `keep_pages`, `restarts` as for `DataLoader`.

    Returns:
        A `shmloader.DataLoader` that is also an instance of the given loader's class.

    Raises:
        TypeError: It is no torch DataLoader, or an option is unknown.
    """
    if not isinstance(torch_loader, torch.utils.data.DataLoader):
        raise TypeError(
            f"wrap() takes a torch.utils.data.DataLoader, but got {type(torch_loader).__name__}"
        )
    loader = object.__new__(_class_over(type(torch_loader)))
    state = {name: value for name, value in vars(torch_loader).items() if name != "_iterator"}
    loader.__dict__.update(state, _iterator=None)
    loader._set_options(**options)
    return loader

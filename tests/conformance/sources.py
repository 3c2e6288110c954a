"""
What hands out values that another process made: each kind behind one small class.

A value is asked for by a function without arguments that can be pickled: `source.many(makes)` hands
out what they return, in their order, and raises what they raise.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import unittest.mock
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch.utils.data
from torch.utils.data import Dataset, Sampler

import shmloader
from tests.device.driver import Gpu
from tests.helpers.datasets import Computed

LONGEST_WAIT_S = 60  # only a hang reaches it

Make = Callable[[], Any]


class Source(Protocol):
    """Whatever hands out values."""

    def many(self, makes: Sequence[Make]) -> Iterator[Any]:
        """Hand out what these functions return, each called in another process."""

    def close(self) -> None:
        """End its processes."""


def get(source: Source, make: Make) -> Any:
    """Hand out one value, and let it be the last of its epoch."""
    values = source.many([make])
    value = next(values)
    assert [] == list(values)
    return value


def outcome(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or the class of what it raises."""
    try:
        return call()
    except BaseException as error:
        return type(error)


class Making(Dataset[Any]):
    """Calls what it is indexed by."""

    def __getitem__(self, make: Make) -> Any:
        return make()


class Asked(Sampler[Make]):
    """Yields what is asked for in the next epoch."""

    makes: Sequence[Make] = ()

    def __iter__(self) -> Iterator[Make]:
        return iter(self.makes)

    def __len__(self) -> int:
        return len(self.makes)


def identity(value: Any) -> Any:
    """Collate nothing."""
    return value


def arguments_of(**options: Any) -> dict[str, Any]:
    """Make the arguments of a loader of one worker that calls what it is asked for."""
    return {
        "dataset": Making(), "sampler": Asked(), "batch_size": None, "collate_fn": identity,
        "num_workers": 1, "persistent_workers": True, "timeout": LONGEST_WAIT_S, **options,
    }  # fmt: skip


class FromLoader:
    """
    A loader, an epoch for each request.

    Args:
        make: `torch.utils.data.DataLoader`, ours, or what makes one of the two.
    """

    def __init__(self, make: Callable[..., Any] = shmloader.DataLoader, **options: Any) -> None:
        self.loader = make(**arguments_of(**options))
        self._epoch: Iterator[Any] | None = None

    def many(self, makes: Sequence[Make]) -> Iterator[Any]:
        self.loader.sampler.makes = makes
        self._epoch = iter(self.loader)
        return self._epoch

    def close(self) -> None:
        self._epoch = self.loader._iterator = None
        shmloader.close(self.loader)


def wrapped(restarts: int = 0, **options: Any) -> Any:
    """Make a loader of torch's class, and wrap it."""
    return shmloader.wrap(torch.utils.data.DataLoader(**options), restarts=restarts)


class FromInstalled(FromLoader):
    """A loader of torch's own class, served after `install()`."""

    def __init__(self, restarts: int = 0, **options: Any) -> None:
        self._restarts = restarts
        shmloader.install(restarts=restarts)
        try:
            super().__init__(torch.utils.data.DataLoader, **options)
        finally:
            shmloader.uninstall()

    def many(self, makes: Sequence[Make]) -> Iterator[Any]:
        shmloader.install(restarts=self._restarts)
        try:
            return super().many(makes)
        finally:
            shmloader.uninstall()


class Patched:
    """A source for which some names are others: an accelerator that is none."""

    def __init__(self, names: dict[str, Any], make: Callable[[], Source]) -> None:
        self._patched = contextlib.ExitStack()
        for name, value in names.items():
            self._patched.enter_context(unittest.mock.patch(name, value))
        self._source = make()

    def many(self, makes: Sequence[Make]) -> Iterator[Any]:
        return self._source.many(makes)

    def close(self) -> None:
        self._source.close()
        self._patched.close()


def from_pinned(**options: Any) -> Source:
    """A loader that pins by a copy, into memory that is not pinned."""
    from shmloader.pinning.pinned_slots import pin

    def empty(like: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)

    names = {
        "torch.accelerator.is_available": lambda: True,
        "torch.accelerator.current_device_index": lambda: 0,
        "torch.Tensor.pin_memory": lambda self, *_: self,
        "shmloader.pinning.host_delivery.pin": lambda leaf: pin(leaf, empty),
    }
    given = {"multiprocessing_context": "fork", "pin_memory": True, **options}
    return Patched(names, lambda: FromLoader(**given))


def over_a_gpu(make: Callable[..., Source], **fixed: Any) -> Callable[..., Source]:
    """Have slots page-locked, those of small batches too, for a GPU that is none."""

    def opened(**options: Any) -> Source:
        gpu = Gpu()
        gpu.driver.set(is_late=0)
        names = {**gpu.names, "shmloader.memory.policy.LOCKED_MIN_BYTES": 1}
        return Patched(names, lambda: make(**fixed, **options))

    return opened


class FromExecutor:
    """
    The calls of an executor.

    Args:
        make: Makes it.
        options: Of its `map`; None: calls are made by `submit`.
    """

    def __init__(self, make: Callable[[], Any], options: dict[str, Any] | None = None) -> None:
        self.pool = make()
        self._options = options

    def many(self, makes: Sequence[Make]) -> Iterator[Any]:
        if self._options is None:
            return (future.result() for future in [self.pool.submit(make) for make in makes])
        return self.pool.map(call, makes, timeout=LONGEST_WAIT_S, **self._options)

    def close(self) -> None:
        self.pool.shutdown()


def call(make: Make) -> Any:
    """Call it."""
    return make()


class FromPublisher:
    """A subscriber of a loader that another process publishes."""

    _names = itertools.count()

    def __init__(self, pin_memory: bool = False, **options: Any) -> None:
        name = f"conformance-{os.getpid()}-{next(self._names)}"
        self._pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self._publisher = context.Process(target=_publish, args=(name, theirs, self._pipe, options))
        self._publisher.start()
        theirs.close()
        given: dict[str, Any] = {"pin_memory": pin_memory, "timeout": LONGEST_WAIT_S}
        self.subscription = shmloader.subscribe(name, **given)

    def many(self, makes: Sequence[Make]) -> Iterator[Any]:
        self._pipe.send(makes)
        return iter(self.subscription)

    def close(self) -> None:
        if self._pipe.closed:
            return
        self.subscription.close()
        with contextlib.suppress(OSError):  # an error has ended it
            self._pipe.send(None)  # a forked child may have this end open
        self._pipe.close()
        self._publisher.join(LONGEST_WAIT_S)
        self._publisher.close()
        del self.subscription


def _publish(name: str, pipe: Any, of_the_parent: Any, options: dict[str, Any]) -> None:
    of_the_parent.close()
    loader = shmloader.DataLoader(**arguments_of(multiprocessing_context="fork", **options))
    # An error is the subscriber's to tell.
    with (
        contextlib.suppress(BaseException),
        shmloader.publish(loader, name, 1, consume=True) as epochs,
    ):
        while (makes := pipe.recv()) is not None:
            loader.sampler.makes = makes
            for _ in epochs:
                pass


class FromRecords:
    """The records of a `SharedList`, which are the caller's own at each look."""

    def many(self, makes: Sequence[Make]) -> Iterator[Any]:
        return iter(shmloader.SharedList([make() for make in makes]))

    def close(self) -> None:
        pass


class FromCache:
    """The samples of a cached dataset, each as it comes out of the cache."""

    def many(self, makes: Sequence[Make]) -> Iterator[Any]:
        dataset = shmloader.cached(Numbered(makes), 256 << 20)
        try:
            for index in range(len(makes)):
                dataset[index]
                yield dataset[index]
        finally:
            dataset.close()

    def close(self) -> None:
        pass


class Numbered(Computed):
    """Makes a sample by its number."""

    def __init__(self, makes: Sequence[Make]) -> None:
        super().__init__(len(makes), lambda index: makes[index]())

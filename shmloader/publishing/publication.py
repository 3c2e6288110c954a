"""Publish a loader's batches: to subscribers alone, or to this process too."""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Iterator
from typing import Any, Self

import torch.utils.data

from shmloader.dataloader import DataLoader, wrap
from shmloader.order.samplers import epoch_of, tell_epoch
from shmloader.publishing.publisher import Publisher
from shmloader.publishing.subscription import Subscription

_EXIT_S = 10.0  # how long one that exits, or has failed, waits for subscribers to read


def publish(
    loader: torch.utils.data.DataLoader[Any],
    name: str,
    subscribers: int,
    epochs: int | None = None,
    timeout: float | None = None,
    consume: bool = False,
) -> Publication:
    """
    Hand a loader's batches on to other processes of this user, each batch to all of them.

    It begins when as many have come as are announced, and runs epoch after epoch until the last one
    has left. A sampler with `set_epoch` is told each epoch. The slowest subscriber holds up the
    others, once it is as many batches behind as there are `slots`.

    Args:
        loader: With workers; of torch's class too.
        name: By which `subscribe(name)` finds it.
        subscribers: How many there will be, without this process.
        epochs: How many epochs to run at most; None: no limit.
        timeout: How long, in seconds, one subscriber may keep all waiting before it is given up,
            and how long to wait for all to come; None: for ever.
        consume: Return at once, for a rank that reads for its peers: the batches that it takes are
            those of the subscribers, and each iter() is an epoch.

    Returns:
        What was published, when it is over; with `consume=True` an iterable, at once.

    Raises:
        ValueError: The loader has no workers, or it is no name.
        FileExistsError: Another process publishes by this name.
        TimeoutError: Subscribers did not come in time.
    """
    if loader.num_workers == 0:
        raise ValueError("publish() takes a loader with workers: set num_workers to at least 1")
    if subscribers < 1 or (epochs is not None and epochs < 1):
        raise ValueError("publish() takes at least 1 subscriber and 1 epoch")
    ours = loader if isinstance(loader, DataLoader) else wrap(loader)
    ours.close()  # workers that live on send batches, and no leases
    publisher = Publisher(name, subscribers, _length_of(ours), timeout)
    publication = Publication(ours, publisher, epochs)
    if not consume:
        with publication:
            publication.run()
    return publication


def _length_of(loader: DataLoader[Any]) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


class Publication:
    """The batches of a loader for this process, of which others get the same."""

    def __init__(self, loader: DataLoader[Any], publisher: Publisher, epochs: int | None) -> None:
        self._loader = loader
        self._publisher = publisher
        self._left = itertools.count() if epochs is None else iter(range(epochs))
        self._told = -1  # the sampler's epoch that was run last
        self._own: Subscription | None = None
        self._end = weakref.finalize(self, publisher.finish, None, _EXIT_S)

    def __len__(self) -> int:
        """Count the batches of an epoch, as the loader does."""
        return len(self._loader)

    def run(self) -> None:
        """Run epochs for the subscribers, until the last one has left."""
        for _ in self._left:
            for _ in self._hand_on():
                if self._publisher.is_left:
                    break
            if self._publisher.is_left:
                return

    def __iter__(self) -> Iterator[Any]:
        """Run an epoch for the subscribers and for this process."""
        if next(self._left, None) is None or not self._end.alive:
            name = self._publisher.name
            raise RuntimeError(
                f"what is published as {name!r} has ended: it is closed, or ran its epochs"
            )
        if self._own is None:
            pins = self._loader.pin_memory and torch.accelerator.is_available()
            peer, options = self._publisher.join(), self._loader._options()
            self._own = Subscription(self._publisher.name, options, peer, pins)
        return _Epoch(self._hand_on(), iter(self._own))

    def _hand_on(self) -> Iterator[None]:
        """Tell the subscribers of an epoch's batches, of one at each step."""
        self._publisher.gather()
        self._tell_sampler()
        service = self._loader._service
        service.attached = (self._publisher,)
        try:
            yield from self._publisher.publish(iter(self._loader))
        except Exception as error:
            self.close(error)
            raise
        finally:
            service.attached = ()

    def _tell_sampler(self) -> None:
        """Tell the sampler its next epoch, unless user code has told it another one."""
        sampler = self._loader._index_sampler
        epoch = epoch_of(sampler)
        if epoch >= 0 and epoch == self._told:
            tell_epoch(sampler, epoch + 1)
        self._told = epoch_of(sampler)

    def close(self, error: BaseException | None = None) -> None:
        """Say that nothing more comes, or why, and wait until subscribers have read all."""
        if self._own is not None:
            self._own.close()
        if self._end.detach() is not None:
            self._publisher.finish(error, math.inf if error is None else _EXIT_S)
        self._loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.close(error)


class _Epoch:
    """One epoch of the process that publishes: each batch is told to all, then copied here too."""

    def __init__(self, told: Iterator[None], batches: Iterator[Any]) -> None:
        self._told = told
        self._batches = batches

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        next(self._told, None)
        return next(self._batches)

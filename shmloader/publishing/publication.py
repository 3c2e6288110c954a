"""Publish a loader's batches: to subscribers alone, or to this process too."""

from __future__ import annotations

import itertools
import math
import os
import sys
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any, NoReturn, Self

import torch.utils.data

from shmloader.dataloader import DataLoader, wrap
from shmloader.order.samplers import epoch_of, tell_epoch
from shmloader.publishing.publisher import Publisher
from shmloader.publishing.subscription import Subscription
from shmloader.setup.arguments import check_count, check_flag, check_seconds

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
    Send a loader's batches to other processes of this user, each batch to all of them.

    It begins when all announced subscribers have come, and runs epoch after epoch until the last
    one has left. `set_epoch` of a sampler is called for each epoch. The slowest subscriber delays
    the others once it is late by as many batches as there are `slots`.

    Args:
        loader: A loader with workers, also of torch's class.
        name: The name that `subscribe(name)` finds.
        subscribers: How many there will be, without this process.
        epochs: How many epochs to run at most; None: no limit.
        timeout: How long, in seconds, one subscriber may keep the others waiting before it is
            disconnected, and how long to wait for all to come; None: no limit.
        consume: Return at once, for a rank that reads for its peers: it iterates the same batches
            as the subscribers, and each iter() is an epoch.

    Returns:
        The publication, when it is over; with `consume=True` an iterable, at once.

    Raises:
        ValueError, TypeError: The argument is not a loader with workers, the name is not valid, or
            a number is out of range.
        FileExistsError: Another process publishes under this name.
        TimeoutError: Subscribers did not come in time.
    """
    if not isinstance(loader, torch.utils.data.DataLoader):
        raise TypeError(f"publish() takes a DataLoader, but got {type(loader).__name__}")
    if loader.num_workers == 0:
        raise ValueError("publish() takes a loader with workers: set num_workers to at least 1")
    wanted = check_count("subscribers", subscribers)
    most_epochs = None if epochs is None else check_count("epochs", epochs)
    timeout_s = math.inf
    if timeout is not None:
        timeout_s = check_seconds("timeout", timeout, "None to wait forever")
    consumes = check_flag("consume", consume)
    ours = loader if isinstance(loader, DataLoader) else wrap(loader)
    ours.close()  # workers that live on send batches, and no leases
    publisher = Publisher(name, wanted, _length_of(ours), timeout_s)
    publication = Publication(ours, publisher, most_epochs)
    if not consumes:
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
        self._under_way: weakref.ref[Generator[None]] | None = None  # what tells of an epoch
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
        publisher = self._publisher
        if publisher.is_of_another_process:
            raise RuntimeError(
                f"process {os.getpid()} was forked from the publisher of {publisher.name!r}: call "
                "subscribe() in this process, and announce one more to publish()"
            )
        with publisher.lock:
            if next(self._left, None) is None or not self._end.alive:
                raise RuntimeError(
                    f"the publication {publisher.name!r} has ended: it was closed, or has run its "
                    "epochs"
                )
            own = self._join()
            before = None if self._under_way is None else self._under_way()
            if before is not None:
                before.close()
            told = self._hand_on()
            self._under_way = weakref.ref(told)
            return own.begin(told)

    def _join(self) -> Subscription:
        """Have this process as one more that subscribes."""
        if self._own is None:
            pins = self._loader.pin_memory and torch.accelerator.is_available()
            publisher, options = self._publisher, self._loader._options()
            self._own = Subscription(
                publisher.name, options, publisher.join(), pins, publisher.lock
            )
        return self._own

    def _hand_on(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> Generator[None]:
        """Tell the subscribers of an epoch's batches, of one at each step."""
        self._publisher.gather()
        try:
            self._tell_sampler()
            yield from self._publisher.publish(self._begin())
        except Exception as error:
            self.close(error)
            raise
        except BaseException:  # an interrupt, or the loop over it was left
            if not is_exiting():  # there all were told, and names of modules may be gone
                self._publisher.leave()
            raise

    def _begin(self) -> Iterator[Any]:
        """Begin an epoch of the loader, whose batches go out by the publisher."""
        service = self._loader._service
        service.attached = (self._publisher,)
        try:
            return iter(self._loader)
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
        publisher = self._publisher
        if publisher.is_of_another_process:
            return
        publisher.stop()
        if self._own is not None:
            self._own.close()
        with publisher.lock:
            if self._end.detach() is not None:
                publisher.finish(error, math.inf if error is None else _EXIT_S)
            self._loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.close(error)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"the publication {self._publisher.name!r} cannot be pickled or copied: call "
            "subscribe() in the process that reads it"
        )

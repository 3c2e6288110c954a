"""Publish a loader's batches: to subscribers alone, or to this process too."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Literal, Self, overload

import torch.utils.data

from shmloader.dataloader import DataLoader, wrap
from shmloader.order.samplers import epoch_of, tell_epoch
from shmloader.publishing.inbox import Inbox
from shmloader.publishing.member import Lease
from shmloader.publishing.publisher import Publisher

_EXIT_S = 10.0  # how long an interpreter that exits waits for subscribers to read


@overload
def publish(
    loader: torch.utils.data.DataLoader[Any],
    name: str,
    subscribers: int,
    epochs: int | None = None,
    timeout: float | None = None,
    consume: Literal[False] = False,
) -> None: ...


@overload
def publish(
    loader: torch.utils.data.DataLoader[Any],
    name: str,
    subscribers: int,
    epochs: int | None = None,
    timeout: float | None = None,
    *,
    consume: Literal[True],
) -> Publication: ...


def publish(
    loader: torch.utils.data.DataLoader[Any],
    name: str,
    subscribers: int,
    epochs: int | None = None,
    timeout: float | None = None,
    consume: bool = False,
) -> Publication | None:
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
        consume: Return an iterable, for a rank that reads for its peers: the batches that it gives
            out are those of the subscribers. Each iter() is an epoch.

    Returns:
        None, when it is over; with `consume=True` the iterable, at once.

    Raises:
        ValueError: The loader has no workers, or it is no name.
        FileExistsError: Another process publishes by this name.
        TimeoutError: Subscribers did not come in time.
    """
    publication = Publication(loader, name, subscribers, epochs, timeout)
    if consume:
        return publication
    with publication:
        publication.run()
    return None


class Publication:
    """The batches of a loader for this process, of which others get the same."""

    def __init__(
        self,
        loader: torch.utils.data.DataLoader[Any],
        name: str,
        subscribers: int,
        epochs: int | None,
        timeout: float | None,
    ) -> None:
        """Take the name; as `publish`."""
        if loader.num_workers == 0:
            raise ValueError("publish() takes a loader with workers: set num_workers to at least 1")
        if subscribers < 1 or (epochs is not None and epochs < 1):
            raise ValueError("publish() takes at least 1 subscriber and 1 epoch")
        self._loader = loader if isinstance(loader, DataLoader) else wrap(loader)
        self._loader.close()  # workers that live on send batches, and no leases
        try:
            self._length: int | None = len(self._loader)
        except TypeError:
            self._length = None
        self._name = name
        self._left = itertools.count() if epochs is None else iter(range(epochs))
        self._told = -1  # the sampler's epoch that was run last
        self._inbox: Inbox | None = None
        self._publisher = Publisher(name, subscribers, self._length, timeout)
        self._end = weakref.finalize(self, self._publisher.close, None, _EXIT_S)

    def __len__(self) -> int:
        """Count the batches of an epoch, as the loader does."""
        return len(self._loader)

    def run(self) -> None:
        """Run epochs for the subscribers, until the last one has left."""
        for _ in self._left:
            for _ in self._leases():
                if not self._publisher.members:
                    return
            if not self._publisher.members:
                return

    def __iter__(self) -> Iterator[Any]:
        """
        Run an epoch for the subscribers and for this process.

        Raises:
            RuntimeError: All epochs were run, or it is closed.
        """
        if next(self._left, None) is None or not self._end.alive:
            raise RuntimeError(
                f"what is published as {self._name!r} has ended: it is closed, or ran its epochs"
            )
        if self._inbox is None:
            pins = self._loader.pin_memory and torch.accelerator.is_available()
            self._inbox = Inbox(f"publish({self._name})", self._loader._options(), pins)
        return _Epoch(self._leases(), self._inbox, self._length)

    def _leases(self) -> Iterator[Lease]:
        publisher = self._publisher
        publisher.gather()
        self._tell_sampler()
        service = self._loader._service
        service.attached = (publisher,)
        try:
            yield from publisher.publish(iter(self._loader))
        except Exception as error:
            self._end.detach()
            publisher.close(error)
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

    def close(self) -> None:
        """Say that nothing more comes, and wait until subscribers have read what was published."""
        if self._end.detach() is not None:
            self._publisher.close()
        self._loader.close()
        if self._inbox is not None:
            self._inbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and self._end.detach() is not None:
            self._publisher.close(error)
        self.close()


class _Epoch:
    """One epoch of the process that publishes."""

    def __init__(self, leases: Iterator[Lease], inbox: Inbox, length: int | None) -> None:
        self._leases = leases
        self._inbox = inbox
        inbox.begin_epoch(length)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return self._inbox.next(self._copy)

    def _copy(self, may_wait: bool) -> bool:
        if not may_wait:
            return False
        lease = next(self._leases, None)
        if lease is None:
            self._inbox.end_epoch()
            raise StopIteration
        self._inbox.take(lease)
        return True

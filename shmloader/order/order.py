"""
The order of one iterator's requests: what torch knows as its index sampler.

torch calls `iter()` on it, which begins an epoch: twice for the first one, as on any sampler. It
draws from the loader's sampler, by a plan if that is one of torch's, and goes on within an epoch
if it was told to.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from shmloader.core import pack_request
from shmloader.order import planning


class NoPlace:
    """
    The place of an order that nobody notes, at the beginning of an epoch.

    Attributes:
        record: What a state of the loader is made of.
    """

    record: Any = None

    @property
    def is_between_epochs(self) -> bool:
        """True if a state is gone on from, with a whole epoch."""
        return False

    @property
    def is_in_epoch(self) -> bool:
        """True if a state is gone on from, with the rest of an epoch."""
        return False

    def as_noted(self) -> AbstractContextManager[Any]:
        """Have the generators as they were noted, while an iterator is made."""
        return nullcontext()

    def watch(self, iterator: Any) -> Callable[[Any], bytes | None] | None:
        """Return what notes the sampler's state after a request drawn from this; None: nothing."""
        return None

    def note_empty(self) -> None:
        """Note that an epoch's end came before its first request."""


class Order:
    """
    What an iterator asks for next.

    Attributes:
        drawn_from: The loader's sampler: of batches, or of indices without them.
        noted: The sampler's state after the last draw; None if none is noted.
        place: Knows where the order is, and notes it.
    """

    def __init__(self, sampler: Any, place: Any, *, is_packed: bool) -> None:
        """
        Draw nothing yet.

        Args:
            place: A `NoPlace`, or what has its methods.
            is_packed: Requests are for workers, so they are made as arrays; otherwise they are
                what the sampler draws.
        """
        self.drawn_from = sampler
        self.noted: bytes | None = None
        self.place = place
        self._is_packed = is_packed
        self._restored: tuple[Iterator[Any], Any] | None = None

    def __getattr__(self, name: str) -> Any:
        """Answer as the sampler, for code that looks into torch's iterators."""
        if name.startswith("__") or name == "drawn_from":
            raise AttributeError(name)
        return getattr(self.drawn_from, name)

    def __len__(self) -> int:
        """How many requests an epoch has, by what the sampler says."""
        return len(self.drawn_from)

    def restore(self, requests: Iterator[Any], iterator: Any) -> None:
        """Have the next epoch go on with these requests, of the sampler's own iterator."""
        self._restored = requests, iterator

    @property
    def is_restored(self) -> bool:
        """True until the epoch begins that goes on from a place."""
        return self._restored is not None

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch."""
        self.noted = None
        if self._restored is not None:
            (requests, iterator), self._restored = self._restored, None
            return _Requests(self, requests, self.place.watch(iterator))
        iterator = iter(self.drawn_from)
        planned = planning.plan(self.drawn_from) if self._is_packed else None
        if planned is not None:
            return planned
        return _Requests(self, iterator, self.place.watch(iterator))

    def packed(self, index: Any) -> Any:
        """Pack what was drawn for a worker, as a plan does; otherwise leave it as it is."""
        return pack_request(index) if self._is_packed else index


class _Requests:
    """One epoch, drawn from the sampler's iterator."""

    def __init__(
        self, order: Order, requests: Iterator[Any], state_of: Callable[[Any], bytes | None] | None
    ) -> None:
        self._order = order
        self._requests = requests
        self._state_of = state_of
        self._is_empty = True

    def __iter__(self) -> "_Requests":
        return self

    def __next__(self) -> Any:
        try:
            index = self._order.packed(next(self._requests))
        except StopIteration:
            if self._is_empty:
                self._order.place.note_empty()
            raise
        self._is_empty = False
        if self._state_of is not None:
            self._order.noted = self._state_of(index)
        return index

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


class Order:
    """
    What an iterator asks for next.

    Attributes:
        drawn_from: The loader's sampler: of batches, or of indices without them.
        noted: The sampler's state after the last draw; None if none is noted.
        watch: Called with each iterator of the sampler that is drawn from, before the first draw;
            returns what notes the sampler's state after a request, or None.
        was_empty: Called when an epoch's end comes before its first request.
        place: Knows where the order is, and notes it; None: the room of that is absent.
        at_its_place: While an iterator is made: the generators are as they were noted.
    """

    def __init__(self, sampler: Any, *, is_packed: bool) -> None:
        """
        Draw nothing yet.

        Args:
            is_packed: Requests are for workers, so they are made as arrays; otherwise they are
                what the sampler draws.
        """
        self.drawn_from = sampler
        self.noted: bytes | None = None
        self.watch: Callable[[Any], Callable[[Any], bytes | None] | None] = _note_nothing
        self.was_empty: Callable[[], None] = _do_nothing
        self.place: Any = None
        self.at_its_place: AbstractContextManager[Any] = nullcontext()
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
        """
        Have the next epoch go on from a place.

        Args:
            requests: What comes from there on.
            iterator: The sampler's own, of which they are.
        """
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
            return _Requests(self, requests, self.watch(iterator))
        iterator = iter(self.drawn_from)
        planned = planning.plan(self.drawn_from) if self._is_packed else None
        if planned is not None:
            return planned
        return _Requests(self, iterator, self.watch(iterator))

    def packed(self, index: Any) -> Any:
        """Pack what was drawn for a worker, as a plan does; otherwise leave it as it is."""
        return pack_request(index) if self._is_packed else index


class _Requests:
    """One epoch, drawn from the sampler's iterator."""

    def __init__(
        self,
        order: Order,
        requests: Iterator[Any],
        state_of: Callable[[Any], bytes | None] | None,
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
                self._order.was_empty()
            raise
        self._is_empty = False
        if self._state_of is not None:
            self._order.noted = self._state_of(index)
        return index


def _note_nothing(iterator: Any) -> None:
    """Have no state of a sampler noted."""


def _do_nothing() -> None:
    """Have no epoch's end noted."""

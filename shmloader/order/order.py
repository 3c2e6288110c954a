"""
The order of one iterator's requests: what torch knows as its index sampler.

torch calls `iter()` on it, which begins an epoch: twice for the first one, as on any sampler. It
draws from the loader's sampler, by a plan if that is one of torch's, and goes on within an epoch
if it was told to.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from shmloader.core import HandsOut, InHand, pack_request
from shmloader.order import planning

_END, _GONE = object(), object()  # of an epoch; what was handed out meanwhile


class NoPlace:
    """
    The place of an order that nobody notes, at the beginning of an epoch.

    Attributes:
        record: What a state of the loader is made of.
    """

    record: Any = None

    @property
    def is_in_epoch(self) -> bool:
        """True if a state is gone on from, with the rest of an epoch."""
        return False

    def as_noted(self) -> AbstractContextManager[Any]:
        """Have the generators as they were noted, while an iterator is made."""
        return nullcontext()

    def generator_states(self) -> list[tuple[Any, Any]]:
        """Return the generators that a new iterator may draw from, each with its state of now."""
        return []

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

    def over(self, sampler: Any) -> "Order":
        """Return the order of another sampler, which may draw from this one."""
        return self if sampler is self else Order(sampler, self.place, is_packed=self._is_packed)

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


class DrawsFromOrder:
    """One of torch's iterators, whose index sampler is an order."""

    _order: Order

    @property
    def _index_sampler(self) -> Any:
        return self._order

    @_index_sampler.setter
    def _index_sampler(self, sampler: Any) -> None:
        """torch sets the loader's, which the order draws from; behind that, a library another."""
        if "_sampler_iter" in self.__dict__:
            self._order = self._order.over(sampler)


class _Requests(HandsOut):
    """One epoch, drawn from the sampler's iterator; an interrupt loses nothing that was drawn."""

    _generation = _turn = None
    _num_yielded = 0

    def __init__(
        self, order: Order, requests: Iterator[Any], state_of: Callable[[Any], bytes | None] | None
    ) -> None:
        self._order = order
        # Asked again behind its end, as torch does: a sampler may draw there too.
        answers = map(next, itertools.repeat(requests), itertools.repeat(_END))
        self._requests = zip(itertools.count(), answers, strict=False)
        self._state_of = state_of
        self._is_empty = True
        self._drawn: dict[int, Any] = {}  # and not handed out

    def __iter__(self) -> "_Requests":
        return self

    def _make(self) -> InHand:
        drawn = _GONE
        while drawn is _GONE:  # a signal's handler may have called next(), and got it
            if not self._drawn:
                # In one call: no bytecode runs between the sampler and this record of what it said.
                self._drawn.update(itertools.islice(self._requests, 1))
            number = min(self._drawn, default=-1)
            drawn = self._drawn.get(number, _GONE)
        if drawn is _END:
            del self._drawn[number]
            if self._is_empty:
                self._order.place.note_empty()
            raise StopIteration
        index = self._order.packed(drawn)
        self._is_empty = False
        if self._state_of is not None:
            self._order.noted = self._state_of(index)
        return InHand(index, self._drawn, number)

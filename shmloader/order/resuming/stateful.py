"""
Samplers, and iterators of them, that are asked for their own state: before an epoch, and at draws.

At each draw only if that costs next to nothing, because mostly no state of the loader is ever asked
for. Behind the last state that was noted, draws are counted, and a resumed run repeats them.
"""

import itertools
import pickle
import time
from typing import Any

from torch.utils.data import BatchSampler

from shmloader.errors import attempt, said
from shmloader.order.samplers import nested
from shmloader.worker.snapshot import is_stateful

# What notes may take of an epoch's time, and from its begin on.
_SHARE, _FREE_S = 0.05, 0.005


class Stateful:
    """
    What of a loader's sampler has a state of its own, and that state.

    Attributes:
        owner: The sampler that is asked; None if none has a state.
        unasked: The kind of a sampler that has a state, inside of one that is not asked; or "".
        iterator: The iterator of batches, if that has a state; otherwise None.
        failure: What kept the state from being told, in words; "" if nothing did.
    """

    def __init__(self, sampler: Any) -> None:
        inner = sampler.sampler if _batches_plainly(sampler) else None
        self.owner = next((each for each in (sampler, inner) if is_stateful(each)), None)
        # What ends in a short batch is after its end, which its state may call a beginning.
        self._full = sampler.batch_size if self.owner is inner is not None else 0
        inside = itertools.islice(nested(sampler), 1, None)
        unasked = next((each for each in inside if is_stateful(each)), None)
        # Its place is not that of the batches if they are made in some other way.
        self.unasked = "" if unasked is None or self.owner is not None else type(unasked).__name__
        self.iterator: Any = None
        self._begin()

    def _begin(self) -> None:
        self.failure = ""
        self._began_s, self._spent_s = time.perf_counter(), 0.0

    def watch(self, iterator: Any) -> None:
        """Ask this iterator too, if it has a state; an epoch begins."""
        self.iterator = iterator if is_stateful(iterator) else None
        self._begin()

    @property
    def is_here(self) -> bool:
        """True if there is something to ask."""
        return self.owner is not None or self.iterator is not None

    def note(self, drawn: Any) -> bytes | None:
        """Ask for the state behind a draw; None if it is left out because that has taken long."""
        now_s = time.perf_counter()
        may_s = _FREE_S + _SHARE * (now_s - self._began_s)
        # The first time always: an order that is drawn with the first batch is in no state before.
        if self._spent_s > may_s:
            return None
        state = self.state(drawn)
        self._spent_s += time.perf_counter() - now_s
        return state

    def state(self, drawn: Any = (), *, is_at_end: bool = False) -> bytes | None:
        """
        Ask for the state now, as a copy; None once that has failed: then draws are counted.

        Args:
            drawn: The batch's indices that were drawn last; nothing before the first.
            is_at_end: The epoch is over, also if the state is one of the next one's beginning.
        """
        if self.failure or not self.is_here:
            return None
        owners = [self.owner, self.iterator]
        has_ended = is_at_end or (self._full > 0 and 0 < len(drawn) < self._full)

        def ask() -> bytes:
            states = [None if each is None else each.state_dict() for each in owners]
            return pickle.dumps([*states, int(has_ended)], protocol=5)

        states, error = attempt(ask)
        if error is not None:
            names = " or ".join(type(each).__name__ for each in owners if each is not None)
            self.failure = f"state_dict() of {names} failed: {said(error)}"
        return states


def _batches_plainly(sampler: Any) -> bool:
    """Returns True if the sampler inside is as far as the batches are."""
    return isinstance(sampler, BatchSampler) and type(sampler).__iter__ is BatchSampler.__iter__

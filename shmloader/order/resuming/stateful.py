"""Samplers, and iterators of them, that are asked for their own state at each draw."""

import itertools
import pickle
from typing import Any

from torch.utils.data import BatchSampler

from shmloader.order.samplers import nested
from shmloader.worker.snapshot import is_stateful


class Stateful:
    """
    What of a loader's sampler has a state of its own, and that state.

    Attributes:
        owner: The sampler that is asked; None if none has a state.
        unasked: The kind of a sampler that has a state, inside of one that is not asked; or "".
        iterator: The iterator of batches, if that has a state; otherwise None.
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
        self._has_failed = False

    def watch(self, iterator: Any) -> None:
        """Ask this iterator too, if it has a state."""
        self.iterator = iterator if is_stateful(iterator) else None
        self._has_failed = False

    @property
    def is_here(self) -> bool:
        """True if there is something to ask."""
        return self.owner is not None or self.iterator is not None

    def state(self, drawn: Any = (), *, is_at_end: bool = False) -> bytes | None:
        """
        Ask for the state now, as a copy; None once that has failed: then draws are counted.

        Args:
            drawn: The batch's indices that were drawn last; nothing before the first.
            is_at_end: The epoch is over, also if the state is one of the next one's beginning.
        """
        if self._has_failed or not self.is_here:
            return None
        try:
            asked = [None if it is None else it.state_dict() for it in (self.owner, self.iterator)]
            has_ended = is_at_end or (self._full > 0 and 0 < len(drawn) < self._full)
            return pickle.dumps([*asked, int(has_ended)], protocol=5)
        except Exception:
            self._has_failed = True
            return None


def _batches_plainly(sampler: Any) -> bool:
    """Returns True if the sampler inside is as far as the batches are."""
    return isinstance(sampler, BatchSampler) and type(sampler).__iter__ is BatchSampler.__iter__

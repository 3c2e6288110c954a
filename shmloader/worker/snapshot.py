"""
Where a worker is: what it publishes with each answer, so that another can take its place.

A snapshot is written behind its answer and becomes visible with it, so no death can tear it. The
trainer keeps the latest one of each worker and the one at which the worker's epoch began.
"""

import pickle
import zlib
from dataclasses import dataclass
from typing import Any

from shmloader import draws

_SUM_BYTES = 4


@dataclass
class Position:
    """
    What a worker has done in its epoch.

    Attributes:
        has_begun: True if its dataset could be set up.
        attempts: Number of requests that it answered, with a batch or not.
        index: The last request, if the dataset is iterable: it is always the same.
        is_exhausted: True if its iterable dataset has ended.
        dataset: The dataset's state_dict(); None if it has none.
        iterator: The state_dict() of the dataset's iterator; None if it has none.
        grown: Private bytes that it took since its start, and the batches that it answered, if it
            leaves because of that.
        undo: The epoch whose foretold requests were answered last, and the random states before the
            first of them.
    """

    has_begun: bool = False
    attempts: int = 0
    index: Any = None
    is_exhausted: bool = False
    dataset: Any = None
    iterator: Any = None
    grown: tuple[int, int] | None = None
    undo: tuple[int, tuple[Any, ...]] | None = None


def take(position: Position) -> bytes:
    """Pickle a position with the states of this process's random number generators."""
    pickled = pickle.dumps((position, draws.random_states()), protocol=5)
    return zlib.crc32(pickled).to_bytes(_SUM_BYTES, "little") + pickled


def _load(snapshot: bytes) -> tuple[Position, tuple[Any, ...]]:
    pickled = snapshot[_SUM_BYTES:]
    if zlib.crc32(pickled).to_bytes(_SUM_BYTES, "little") != snapshot[:_SUM_BYTES]:
        raise ValueError("the dead worker's snapshot does not match its checksum")
    position, random_states = pickle.loads(pickled)
    return position, random_states


def position_of(snapshot: bytes) -> Position:
    """Read the position from a snapshot."""
    return _load(snapshot)[0]


def restore_random_states(snapshot: bytes) -> None:
    """Set the random number generators to where they were in the snapshot's process."""
    draws.set_random_states(_load(snapshot)[1])


def state_of(owner: Any) -> Any:
    """The object's state_dict(), or None if it cannot be saved and restored."""
    if not all(callable(getattr(owner, name, None)) for name in ("state_dict", "load_state_dict")):
        return None
    try:
        return owner.state_dict()
    except NotImplementedError:
        return None

"""
Where a worker is: what it publishes with each answer, so that another can take its place.

A snapshot is written after its answer and becomes visible with it, so no death can tear it. The
trainer keeps the latest one of each worker and the one at which the worker's epoch began; with
`resumable=True` also those of the last batch delivered, for a resumed run.
"""

import functools
import pickle
import struct
import zlib
from dataclasses import dataclass
from typing import Any

from shmloader.errors import attempt
from shmloader.worker import generator_states

_SUM_BYTES = 4
_HEAD = struct.Struct("<2Q2I")  # attempts, epoch, flags, bytes of random states
_HAS_BEGUN, _IS_EXHAUSTED, _HAS_ENDED, _HAS_STATES, _IS_AS_SEEDED = (1 << bit for bit in range(5))
_LEAVES, _LACKS_STATE, _IS_LOST, _SAYS_WHY = (1 << bit for bit in range(5, 9))
AS_SEEDED = generator_states.AS_SEEDED


@dataclass
class Position:
    """What a worker has done in its epoch."""

    has_begun: bool = False  # its dataset could be set up
    attempts: int = 0  # number of requests that it answered, with a batch or not
    epoch: int = 0  # the number of its epoch, if draws are seeded by it
    index: Any = None  # the last request, if the dataset is iterable: it is always the same
    is_exhausted: bool = False  # its iterable dataset has ended
    has_ended: bool = False  # its iterator did, within the last batch or by an error
    dataset: Any = None  # the dataset's state_dict(); None if it has none
    iterator: Any = None  # the same of the dataset's iterator
    # It has states, but could not tell them: only fetching its epoch again leads here; or nothing.
    lacks_state: bool = False
    is_lost: bool = False
    untold: str | None = None  # what kept it from telling a state, and what comes of that
    leaves: bool = False  # its process ends after this answer, because its memory grew too much


def take(position: Position, seeded: tuple[bytes, ...] | None = None) -> bytes:
    """Write down a position, with this process's random states that are not as `seeded`."""
    return make(position, generator_states.join(generator_states.pack_all(), seeded))


def make(position: Position, joined: bytes | None) -> bytes:
    """Write down a position with joined random states; None: those that its way there leaves."""
    flags = _HAS_BEGUN * position.has_begun + _IS_EXHAUSTED * position.is_exhausted
    flags += _HAS_ENDED * position.has_ended + _LACKS_STATE * position.lacks_state
    flags += _HAS_STATES * (position.dataset is not None or position.iterator is not None)
    flags += _IS_LOST * position.is_lost + _SAYS_WHY * (position.untold is not None)
    joined = joined or b""
    flags += _IS_AS_SEEDED * (joined == AS_SEEDED) + _LEAVES * position.leaves
    # The fifth part is empty: earlier versions read it.
    more = (position.index, position.dataset, position.iterator, position.untold, None)
    body = _HEAD.pack(position.attempts, position.epoch, flags, len(joined)) + joined
    body += pickle.dumps(more, protocol=5)
    return zlib.crc32(body).to_bytes(_SUM_BYTES, "little") + body


def _open(snapshot: bytes) -> tuple[int, int, int, bytes, bytes]:
    """Return the attempts, the epoch, the flags, the random states, and what is pickled."""
    body = snapshot[_SUM_BYTES:]
    if zlib.crc32(body).to_bytes(_SUM_BYTES, "little") != snapshot[:_SUM_BYTES]:
        raise ValueError("the dead worker's snapshot does not match its checksum")
    attempts, epoch, flags, length = _HEAD.unpack_from(body)
    pickled_at = _HEAD.size + length
    return attempts, epoch, flags, body[_HEAD.size : pickled_at], body[pickled_at:]


def position_of(snapshot: bytes) -> Position:
    """Read the position from a snapshot."""
    attempts, epoch, flags, _, pickled = _open(snapshot)
    # Older states have three parts to five; what the fifth says is not needed here.
    index, dataset, iterator, *more = pickle.loads(pickled)
    return Position(
        has_begun=bool(flags & _HAS_BEGUN),
        attempts=attempts,
        epoch=epoch,
        index=index,
        is_exhausted=bool(flags & _IS_EXHAUSTED),
        has_ended=bool(flags & _HAS_ENDED),
        dataset=dataset,
        iterator=iterator,
        lacks_state=bool(flags & _LACKS_STATE),
        is_lost=bool(flags & _IS_LOST),
        untold=more[0] if flags & _SAYS_WHY else None,
        leaves=bool(flags & _LEAVES),
    )


def _position_here(snapshot: bytes) -> Position:
    """Read a position where no state is wanted, whatever those in it raise as they are made."""
    position, _ = attempt(functools.partial(position_of, snapshot))
    return position or Position()


def random_part(snapshot: bytes) -> bytes | None:
    """Return the joined random states of a snapshot; None if it has none."""
    return _open(snapshot)[3] or None


def _flags_of(snapshot: bytes) -> int:
    """Read the flags alone, of a snapshot that is whole."""
    flags: int = _HEAD.unpack_from(snapshot, _SUM_BYTES)[2]
    return flags


def is_opaque(snapshot: bytes) -> bool:
    """Returns True if a snapshot holds random states, and no state of the user's."""
    return not _flags_of(snapshot) & (_HAS_STATES | _IS_AS_SEEDED)


def says_that_it_leaves(snapshot: bytes) -> bool:
    """Returns True if its worker leaves after it, because its memory grew too much."""
    return bool(_flags_of(snapshot) & _LEAVES)


def lacks_state(snapshot: bytes) -> bool:
    """Returns True if its dataset has a state that could not be told, so it cannot be restored."""
    return bool(_flags_of(snapshot) & _LACKS_STATE)


def is_lost(snapshot: bytes) -> bool:
    """Returns True if nothing leads to where its worker was."""
    return bool(_flags_of(snapshot) & _IS_LOST)


def untold(snapshot: bytes) -> str | None:
    """Return what kept its worker from telling a state, now or before; None if nothing did."""
    return _position_here(snapshot).untold if _flags_of(snapshot) & _SAYS_WHY else None


def restore_random_states(snapshot: bytes, seeded: tuple[bytes, ...] | None = None) -> None:
    """Set the random number generators to where they were in the snapshot's process."""
    joined = random_part(snapshot)
    if joined is not None:
        generator_states.unpack_all(generator_states.split(joined, seeded))


def is_stateful(owner: Any) -> bool:
    """Returns True if an object can be saved and restored by itself."""
    return all(callable(getattr(owner, name, None)) for name in ("state_dict", "load_state_dict"))


def state_of(owner: Any) -> Any:
    """The object's state_dict(), or None if it cannot be saved and restored."""
    if not is_stateful(owner):
        return None
    try:
        return owner.state_dict()
    except NotImplementedError:
        return None

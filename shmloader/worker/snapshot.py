"""
Where a worker is: what it publishes with each answer, so that another can take its place.

A snapshot is written behind the answer it belongs to and becomes visible with it, so no death can
tear it. The trainer keeps the latest of each worker and the one at which its epoch began.
"""

import pickle
import random
import zlib
from dataclasses import dataclass
from typing import Any

import numpy
import torch

_SUM_BYTES = 4


@dataclass
class Position:
    """
    What a worker has done in its epoch.

    Attributes:
        has_begun: Whether its dataset could be set up.
        attempts: How many requests it answered, in whatever way.
        index: What it was asked for last, if the dataset is iterable: it is always the same.
        is_exhausted: Whether its iterable dataset has ended.
        dataset: What the dataset's state_dict() said; None if it has none.
        iterator: What that of the dataset's iterator said, likewise.
    """

    has_begun: bool = False
    attempts: int = 0
    index: Any = None
    is_exhausted: bool = False
    dataset: Any = None
    iterator: Any = None


def _random_states():
    return (
        random.getstate(),
        numpy.random.get_state(legacy=False),
        torch.get_rng_state().numpy().tobytes(),
    )


def take(position):
    """Put a position, and the states of this process's generators of random numbers, in bytes."""
    pickled = pickle.dumps((position, _random_states()), protocol=5)
    return zlib.crc32(pickled).to_bytes(_SUM_BYTES, "little") + pickled


def _load(snapshot):
    pickled = snapshot[_SUM_BYTES:]
    if zlib.crc32(pickled).to_bytes(_SUM_BYTES, "little") != snapshot[:_SUM_BYTES]:
        raise ValueError("the dead worker's snapshot does not match its checksum")
    return pickle.loads(pickled)


def position_of(snapshot):
    """Read the position from a snapshot."""
    return _load(snapshot)[0]


def restore_random_states(snapshot):
    """Draw from here on what the process that took the snapshot would have drawn."""
    python_state, numpy_state, torch_state = _load(snapshot)[1]
    random.setstate(python_state)
    numpy.random.set_state(numpy_state)
    torch.set_rng_state(torch.frombuffer(bytearray(torch_state), dtype=torch.uint8))


def state_of(owner):
    """What an object says of its state, if it offers to tell and to restore it; else None."""
    if not all(callable(getattr(owner, name, None)) for name in ("state_dict", "load_state_dict")):
        return None
    try:
        return owner.state_dict()
    except NotImplementedError:
        return None

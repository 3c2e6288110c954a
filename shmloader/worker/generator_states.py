"""
States of random number generators as few bytes: 2.5 KB for each Mersenne Twister.

Python's, numpy's and torch's default generator are all of that kind. torch keeps each of its words
of 32 bits in 64. What is not as expected is kept as it is, and takes more room.
"""

import functools
import pickle
import random
import struct
import sys
from typing import Any

import numpy
import torch

_WORDS = 624
_PLAIN, _PACKED = b"\0", b"\1"

# torch's generator: seed, words left, seeded, place of the next; words; the normal draw it keeps.
_TORCH_HEAD = 24
_TORCH_END = _TORCH_HEAD + 8 * _WORDS
_TORCH_BYTES = 5056
_TORCH_LEAST = _TORCH_HEAD + 4 * _WORDS

_PYTHON = struct.Struct(f"<{_WORDS + 1}I?d")  # words and place; the normal draw it keeps
_NUMPY = struct.Struct("<IId")  # place; the normal draw it keeps
_LENGTHS = struct.Struct("<3H")


def pack_torch(generator: torch.Generator) -> bytes:
    """Pack the state of one of torch's CPU generators."""
    state = generator.get_state()
    if not _is_as_expected() or state.numel() != _TORCH_BYTES:
        return _PLAIN + state.numpy().tobytes()
    return _PACKED + _halved(state)


def _halved(state: torch.Tensor) -> bytes:
    """Leave out the upper half of each word, which is 0, and the zeros at the end."""
    array = state.numpy()
    words = array[_TORCH_HEAD:_TORCH_END].view("<u4")[::2].tobytes()
    return array[:_TORCH_HEAD].tobytes() + words + array[_TORCH_END:].tobytes().rstrip(b"\0")


@functools.cache
def _is_as_expected() -> bool:
    """Returns True if this torch keeps its generators' states as said above."""
    generator = torch.Generator()
    torch.rand(3, generator=generator)
    torch.randn(17, generator=generator)
    state = generator.get_state()
    if len(state) != _TORCH_BYTES or sys.byteorder != "little":
        return False
    return torch.equal(state, unpack_torch(_PACKED + _halved(state)))


def unpack_torch(packed: bytes) -> torch.Tensor:
    """Return the state that was packed, for `Generator.set_state`."""
    kind, packed = packed[:1], packed[1:]
    if kind == _PLAIN:
        return torch.frombuffer(bytearray(packed), dtype=torch.uint8)
    if kind != _PACKED or len(packed) < _TORCH_LEAST:
        raise ValueError(f"{len(packed) + 1} bytes are no state of a generator")
    state = numpy.zeros(_TORCH_BYTES, numpy.uint8)
    state[:_TORCH_HEAD] = numpy.frombuffer(packed[:_TORCH_HEAD], numpy.uint8)
    words = numpy.frombuffer(packed[_TORCH_HEAD:_TORCH_LEAST], "<u4")
    state[_TORCH_HEAD:_TORCH_END].view("<u4")[::2] = words
    tail = numpy.frombuffer(packed[_TORCH_LEAST:], numpy.uint8)
    state[_TORCH_END : _TORCH_END + len(tail)] = tail
    return torch.from_numpy(state)


def _pack_python() -> bytes:
    version, words, kept = state = random.getstate()
    if version != 3:
        return _PLAIN + pickle.dumps(state)
    return _PACKED + _PYTHON.pack(*words, kept is not None, kept or 0.0)


def _unpack_python(packed: bytes) -> None:
    if packed[:1] == _PLAIN:
        random.setstate(pickle.loads(packed[1:]))
        return
    *words, is_kept, kept = _PYTHON.unpack(packed[1:])
    random.setstate((3, tuple(words), kept if is_kept else None))


def _pack_numpy() -> bytes:
    state = numpy.random.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        return _PLAIN + pickle.dumps(state)
    inner = state["state"]
    key: bytes = inner["key"].astype("<u4").tobytes()
    rest = _NUMPY.pack(inner["pos"], state["has_gauss"], state["gauss"])
    return _PACKED + key + rest


def _unpack_numpy(packed: bytes) -> None:
    if packed[:1] == _PLAIN:
        numpy.random.set_state(pickle.loads(packed[1:]))
        return
    key = numpy.frombuffer(packed, "<u4", _WORDS, 1).astype(numpy.uint32)
    place, has_gauss, gauss = _NUMPY.unpack(packed[1 + 4 * _WORDS :])
    numpy.random.set_state(("MT19937", key, place, has_gauss, gauss))


def pack_all() -> tuple[bytes, ...]:
    """Pack the states of this process's three global generators."""
    return _pack_python(), _pack_numpy(), pack_torch(torch.default_generator)


def unpack_all(packed: tuple[bytes, ...]) -> None:
    """Set the three global generators to states that `pack_all` returned."""
    python_state, numpy_state, torch_state = packed
    _unpack_python(python_state)
    _unpack_numpy(numpy_state)
    torch.default_generator.set_state(unpack_torch(torch_state))


def join(packed: tuple[bytes, ...], seeded: tuple[bytes, ...] | None) -> bytes:
    """Make one piece of three states; those that are still as they were seeded take no room."""
    if seeded is not None:
        packed = tuple(b"" if a == b else a for a, b in zip(packed, seeded, strict=True))
    return _LENGTHS.pack(*map(len, packed)) + b"".join(packed)


def split(joined: bytes, seeded: tuple[bytes, ...] | None) -> tuple[bytes, ...]:
    """Take three states apart again."""
    if len(joined) < _LENGTHS.size:
        raise ValueError(f"{len(joined)} bytes are no states of generators")
    lengths, at, states = _LENGTHS.unpack(joined[: _LENGTHS.size]), _LENGTHS.size, []
    for place, length in enumerate(lengths):
        if length == 0 and seeded is None:
            raise ValueError("a generator's state is missing")
        states.append(joined[at : at + length] if length or seeded is None else seeded[place])
        at += length
    if at != len(joined):
        raise ValueError(f"{len(joined)} bytes are no states of generators")
    return tuple(states)


AS_SEEDED: Any = _LENGTHS.pack(0, 0, 0)

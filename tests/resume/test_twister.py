"""A generator's state is packed into half its bytes, and is the same behind it."""

import numpy
import pytest
import torch

from shmloader.core import pack_twister
from shmloader.worker.generators import pack_torch, unpack_torch

HEAD, WORDS = 24, 624
END = HEAD + 8 * WORDS


def by_numpy(state, mark):
    """The same, as arithmetic on arrays."""
    array = state.numpy()
    words = array[HEAD:END].view("<u4")[::2].tobytes()
    return mark + array[:HEAD].tobytes() + words + array[END:].tobytes().rstrip(b"\0")


def states():
    generator = torch.Generator()
    for seed in range(20):
        yield generator.manual_seed(seed).get_state()
        torch.rand(seed, generator=generator)
        yield generator.get_state()
        torch.randn(16 + seed, generator=generator)  # from here on it keeps a normal draw
        yield generator.get_state()


@pytest.mark.parametrize("mark", [b"", b"\1", b"abc"])
def test_bytes_are_those_that_numpy_makes(mark):
    """States that earlier versions have saved stay readable."""
    for state in states():
        assert by_numpy(state, mark) == pack_twister(state, mark, HEAD, WORDS)


def test_a_state_goes_there_and_back():
    """What was packed draws the same."""
    for state in states():
        generator = torch.Generator()
        generator.set_state(state)
        packed = pack_torch(generator)
        again = unpack_torch(packed)
        assert len(packed) < len(state) * 0.55
        assert torch.equal(state, again)


@pytest.mark.parametrize("size", [0, 16, END - 1])
def test_a_shorter_one_is_refused(size):
    """Nothing behind its end is read."""
    state = torch.from_numpy(numpy.zeros(size, numpy.uint8))
    with pytest.raises(ValueError, match=f"{size} bytes"):
        pack_twister(state, b"", HEAD, WORDS)
    whole = torch.zeros(END, dtype=torch.uint8)
    assert HEAD + 4 * WORDS == len(pack_twister(whole, b"", HEAD, WORDS))

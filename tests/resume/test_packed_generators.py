"""A generator's state is packed into half its bytes, and is the same behind it."""

import pytest
import torch

from shmloader.worker.generator_states import pack_torch, unpack_torch


def states():
    generator = torch.Generator()
    for seed in range(20):
        yield generator.manual_seed(seed).get_state()
        torch.rand(seed, generator=generator)
        yield generator.get_state()
        torch.randn(16 + seed, generator=generator)  # from here on it keeps a normal draw
        yield generator.get_state()


def test_a_state_goes_there_and_back():
    """What was packed draws the same."""
    for state in states():
        generator = torch.Generator()
        generator.set_state(state)
        packed = pack_torch(generator)
        again = unpack_torch(packed)
        assert len(packed) < len(state) * 0.55
        assert torch.equal(state, again)


@pytest.mark.parametrize("size", [1, 16, 2000])
def test_a_shorter_one_is_refused(size):
    """A state that was cut off is none."""
    packed = pack_torch(torch.Generator())
    with pytest.raises(ValueError, match=f"{size} bytes"):
        unpack_torch(packed[:size])

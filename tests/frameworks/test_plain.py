"""The scaffold itself, with no framework: each way trains to torch's losses, and is counted."""

from __future__ import annotations

import torch

from .training import WORKERS, Pictures, plain, seed
from .ways import INSTALL, TORCH, spied


def test_losses_tell_the_draws():
    """A training whose workers draw other numbers has other losses."""

    def train(shift):
        seed()
        return plain(TORCH.loader(Pictures(), worker_init_fn=shift, **WORKERS))

    assert train(None) == train(None)
    assert train(None) != train(draw_once)


def draw_once(_):
    torch.rand(1)


def test_spy_counts_both():
    """The spy tells torch's iterators from ours."""
    with spied() as made:
        list(TORCH.loader(Pictures(8), **WORKERS))
        with INSTALL.active():
            list(INSTALL.loader(Pictures(8), **WORKERS))

    assert (1, 1) == (made.ours, made.torchs)

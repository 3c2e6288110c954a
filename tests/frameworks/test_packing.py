"""The packing example: batches are torch's, lie in slots, and a run goes on exactly."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader

from tests.helpers.segments import in_slots

from .shims import example

COUNT = 200


@pytest.fixture
def packing():
    example("token_budget")  # which it imports, as a script beside it does
    return example("packing")


@pytest.fixture
def documents(packing):
    return packing.Documents(COUNT, most=2000)


def test_batches_are_torchs_and_lie_in_slots(packing, documents):
    """The loader's batches have torch's bits; tokens and positions lie in the slot."""
    theirs = list(packing.open_loader(documents, TorchLoader))
    with packing.open_loader(documents) as loader:
        for batch, other in zip(loader, theirs, strict=True):
            assert all(in_slots([batch["tokens"], batch["positions"]]))
            assert all(torch.equal(batch[name], other[name]) for name in other)
            starts = batch["starts"].tolist()
            assert [0] * len(starts[:-1]) == batch["positions"][starts[:-1]].tolist()
            assert not batch["tokens"][starts[-1] :].any()
        assert 0 == loader.stats().spilled


def test_the_program_says_that_it_is_right(packing, capsys):
    """Run as its user runs it, it compares a resumed run with one that was not stopped."""
    packing.main()

    assert "after a stop: the same" in capsys.readouterr().out

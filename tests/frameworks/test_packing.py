"""The packing sampler in examples/: each document once, within the budget, exact when resumed."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader

import shmloader

from .shims import example
from .slots import in_slots

COUNT = 200


@pytest.fixture
def packing():
    return example("packing")


@pytest.fixture
def documents(packing):
    return packing.Documents(COUNT)


def test_every_document_once_within_the_budget(packing, documents):
    """An epoch has each document once; no batch exceeds the budget, and epochs differ."""
    packs = packing.Packs(documents.lengths, window=20)
    promised = len(packs)
    epochs = [list(packs), list(packs)]

    for epoch in epochs:
        assert list(range(COUNT)) == sorted(index for pack in epoch for index in pack)
        assert all(sum(documents.lengths[i] for i in pack) <= packing.BUDGET for pack in epoch)
    assert promised == len(epochs[0])
    assert epochs[0] != epochs[1]


def test_batches_are_full(packing, documents):
    """Little of the budget is padding, apart from the last batch."""
    packs = list(packing.Packs(documents.lengths))
    tokens = [sum(documents.lengths[index] for index in pack) for pack in packs[:-1]]

    assert sum(tokens) > 0.95 * packing.BUDGET * len(tokens)


def test_a_document_beyond_the_budget_is_an_error(packing):
    """What can never be packed is refused at once."""
    with pytest.raises(ValueError, match="the budget is 4096"):
        packing.Packs([10, 5000])


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


@pytest.mark.parametrize("stop", [1, 7, 30])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_run_goes_on_exactly(packing, documents, stop, workers):
    """A run that loads a state has the batches that would have come, in this epoch and the next."""
    with packing.open_loader(documents) as loader:
        whole = packing.rows_of(loader) + packing.rows_of(loader)
    with packing.open_loader(documents) as loader:
        first = packing.rows_of(loader, stop)
        state = loader.state_dict()
    packs = packing.Packs(documents.lengths)
    with shmloader.DataLoader(
        documents, batch_sampler=packs, collate_fn=packing.collate, num_workers=workers
    ) as loader:
        loader.load_state_dict(state)
        rest = packing.rows_of(loader) + packing.rows_of(loader)

    assert whole == first + rest


def test_an_epoch_that_is_left_is_over(packing, documents):
    """After a break the next loop is the next epoch."""
    packs = packing.Packs(documents.lengths)
    list(islice(packs, 3))
    following = list(packs)
    reference = packing.Packs(documents.lengths)
    list(reference)

    assert list(reference) == following


def test_the_program_says_that_it_is_right(packing, capsys):
    """Run as its user runs it, it compares a resumed run with one that was not stopped."""
    packing.main()

    assert "after a stop: the same" in capsys.readouterr().out

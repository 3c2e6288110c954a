"""The token-budget sampler in examples/: equal steps, little padding, exact when resumed."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

import shmloader

from .shims import example

TOKENS, COUNT = 4096, 2000


@pytest.fixture
def budget():
    return example("token_budget")


@pytest.fixture
def documents(budget):
    return budget.Documents(COUNT, most=TOKENS)


def epoch_of(samplers):
    """Iterate the samplers of all ranks. Returns each step's batches, by rank."""
    return [*zip(*samplers, strict=True)]


@pytest.mark.parametrize("count", [0, 1, 5, COUNT])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("world_size", [1, 3, 8])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_rank_has_as_many_steps(budget, count, padded, world_size, drop_last, shuffle):
    """Each document is in an epoch, once but for the last batch; no batch exceeds the budget."""
    lengths = budget.Documents(count, most=TOKENS).lengths
    options = {"padded": padded, "shuffle": shuffle, "drop_last": drop_last}
    samplers = [
        budget.TokenBudget(lengths, TOKENS, rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]
    for _ in range(2):
        steps = epoch_of(samplers)
        assert {len(steps)} == set(map(len, samplers))
        batches = [batch for step in steps for batch in step]
        indices = [index for batch in batches for index in batch]
        for batch in batches:
            own = lengths[batch]
            assert 0 < (own.max() * len(batch) if padded else own.sum()) <= TOKENS
        twice = len(indices) - len(set(indices))
        if drop_last:
            assert 0 == twice
        else:
            assert list(range(count)) == sorted(set(indices))
            assert twice <= (world_size - 1) * max(map(len, batches), default=0)


@pytest.mark.parametrize("padded", [True, False])
def test_ranks_have_as_much_to_do(budget, padded):
    """The largest rank's tokens of a step are near the mean; little is padded, or left free."""
    lengths = budget.Documents(40_000).lengths
    ranks = [
        [*budget.TokenBudget(lengths, padded=padded, rank=rank, world_size=8)] for rank in range(8)
    ]
    assert budget.imbalance(lengths, ranks) < 1.05
    batches = [batch for rank in ranks for batch in rank]
    if padded:
        assert budget.wasted(lengths, batches) < 0.05
    else:
        assert sum(int(lengths[batch].sum()) for batch in batches) > 0.95 * 8192 * len(batches)


def test_epochs_differ_and_repeat(budget, documents):
    """By set_epoch(), or as they are counted; a left epoch is over."""
    sampler, other = (budget.TokenBudget(documents.lengths, TOKENS) for _ in range(2))
    first, second = [*sampler], [*sampler]
    assert first != second
    other.set_epoch(1)
    assert second == [*other]
    other.set_epoch(0)
    next(iter(other))
    assert second == [*other]
    other.set_epoch(0)
    next(iter(other))
    other.set_epoch(0)
    assert first == [*other]
    another = budget.TokenBudget(documents.lengths, TOKENS, seed=1)
    assert first != [*another]


def loader_of(budget, documents, ranks, rank, **options):
    sampler = budget.TokenBudget(documents.lengths, TOKENS, rank=rank, world_size=ranks)
    return shmloader.DataLoader(
        documents, batch_sampler=sampler, collate_fn=budget.padded, num_workers=1, **options
    )


def numbers_of(batch):
    return [int(row[0]) - 1 for row in batch]


@pytest.mark.parametrize("ranks", [4, 2, 8, 1])
@pytest.mark.parametrize("done", [3, 20])
def test_another_number_of_ranks_goes_on(budget, documents, ranks, done):
    """The rest of the epoch has what the others have not had, and the next epoch is whole."""
    had = []
    for rank in range(4):
        with loader_of(budget, documents, 4, rank) as loader:
            had += [index for batch in islice(loader, done) for index in numbers_of(batch)]
            state = loader.state_dict()  # of any rank
    rest, following = [], []
    for rank in range(ranks):
        with loader_of(budget, documents, ranks, rank) as loader:
            loader.load_state_dict(state)
            rest += [index for batch in loader for index in numbers_of(batch)]
            following += [index for batch in loader for index in numbers_of(batch)]
    assert set() == set(had) & set(rest)
    assert list(range(COUNT)) == sorted({*had, *rest}) == sorted({*following})


@pytest.mark.parametrize("lengths", [[3, 0], [3, 5000], [-1]])
def test_a_document_that_has_no_place_is_an_error(budget, lengths):
    """What can never be in a batch is refused at once, and so is a rank that does not exist."""
    with pytest.raises(ValueError, match="documents of 1 to 4096 tokens"):
        budget.TokenBudget(lengths, TOKENS)
    with pytest.raises(ValueError, match="rank 2 of 2"):
        budget.TokenBudget([1], TOKENS, rank=2, world_size=2)


def test_lengths_may_be_of_any_kind(budget):
    """A list, or an array of any ints."""
    lengths = [5, 9, 300, 5]
    expected = [*budget.TokenBudget(lengths, TOKENS)]
    for kind in (np.int32, np.uint16, np.int64):
        assert expected == [*budget.TokenBudget(np.array(lengths, kind), TOKENS)]


def test_the_program_prints_its_table(budget, capsys):
    """Beside torch's way and transformers'."""
    budget.main()

    assert "| TokenBudget |" in capsys.readouterr().out

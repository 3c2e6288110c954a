"""Permutations that are drawn here are torch's, and so are the generators behind them."""

import struct
import threading

import pytest
import torch

from shmloader.core import draw_permutation, skip_draws
from shmloader.trainer import permutations
from shmloader.trainer.permutations import permutation, skip_permutation

COUNTS = (0, 1, 2, 3, 623, 624, 625, 626, 1248, 1249, 5000)


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """The tests' runner has threads of its own."""
    monkeypatch.setattr(permutations, "_is_alone", lambda: True)


def pair(seed, drawn):
    """Two generators in the same state, from which some was drawn."""
    made = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
    for generator in made:
        torch.rand(drawn, generator=generator)
        torch.randn(drawn, generator=generator)  # of which it keeps one
    return made


def assert_same_state(theirs, own):
    assert theirs.get_state().tolist() == own.get_state().tolist()


def test_this_torch_draws_as_is_done_here():
    """Otherwise the tests below would compare torch with torch."""
    assert permutations._is_like_torch()


@pytest.mark.parametrize("drawn", [0, 1, 17, 311, 312, 313])
@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**63])
def test_permutation_is_torchs(seed, drawn):
    """Wherever the generator stands, twice in a row."""
    for count in COUNTS:
        theirs, own = pair(seed, drawn)
        for _ in range(2):
            expected = torch.randperm(count, generator=theirs)
            found = permutation(count, own)

            assert str(found.dtype) == "int64"
            assert found.tolist() == expected.tolist()
            assert_same_state(theirs, own)


@pytest.mark.parametrize("drawn", [0, 17, 312])
def test_skipped_permutation_leaves_the_same_generator(drawn):
    """What is drawn from it behind that is the same."""
    for count in COUNTS:
        theirs, own = pair(5, drawn)
        torch.randperm(count, generator=theirs)
        skip_permutation(count, own)

        assert_same_state(theirs, own)
        assert torch.rand(3, generator=theirs).tolist() == torch.rand(3, generator=own).tolist()


@pytest.mark.parametrize("is_own", [False, True])
def test_many_numbers(is_own):
    """More than the caches hold."""
    theirs, own = pair(5, 100)
    expected = torch.randperm(600_000, generator=theirs)

    assert torch.equal(torch.from_numpy(permutation(600_000, own, is_own)), expected)
    assert_same_state(theirs, own)


def test_torch_draws_from_its_default_generator(monkeypatch):
    """Only it locks out threads that draw without Python's lock."""
    monkeypatch.setattr(permutations, "draw_permutation", None)
    monkeypatch.setattr(permutations, "skip_draws", None)
    theirs, own = torch.Generator().manual_seed(3), torch.default_generator
    torch.manual_seed(3)

    assert permutation(10, own).tolist() == torch.randperm(10, generator=theirs).tolist()
    skip_permutation(10, own)
    torch.randperm(10, generator=theirs)
    assert_same_state(theirs, own)


class Own(torch.Generator):
    """A generator of a user's."""


def by_kind(monkeypatch):
    return Own()


def by_count(monkeypatch):
    monkeypatch.setattr(permutations, "_COUNT_END", 10)
    return torch.Generator()


def by_another_thread(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(permutations, "draw_permutation", None)
    monkeypatch.setattr(permutations, "skip_draws", None)
    threading.Thread(target=threading.Event().wait, args=(0.2,)).start()
    return torch.Generator()


def by_torch(monkeypatch):
    monkeypatch.setattr(permutations, "_is_like_torch", lambda: False)
    return torch.Generator()


@pytest.mark.parametrize("case", [by_kind, by_count, by_another_thread, by_torch])
def test_torch_draws_what_is_not_known(monkeypatch, case):
    """Another rule, another kind of generator, another torch."""
    monkeypatch.setattr(permutations, "draw_permutation", None)
    monkeypatch.setattr(permutations, "skip_draws", None)
    own, theirs = case(monkeypatch).manual_seed(3), torch.Generator().manual_seed(3)

    assert permutation(10, own).tolist() == torch.randperm(10, generator=theirs).tolist()
    skip_permutation(10, own)
    torch.randperm(10, generator=theirs)
    assert_same_state(theirs, own)


def test_a_torch_that_draws_otherwise_is_found(monkeypatch):
    """Such as one of another rule, or with other states."""
    look = permutations._is_like_torch.__wrapped__
    assert look()

    monkeypatch.setattr(permutations, "draw_permutation", lambda *_: torch.arange(700).numpy())
    assert not look()
    monkeypatch.undo()

    monkeypatch.setattr(permutations, "skip_draws", lambda *_: None)
    assert not look()
    monkeypatch.undo()

    def refuse(*_):
        raise ValueError

    monkeypatch.setattr(permutations, "draw_permutation", refuse)
    assert not look()


@pytest.mark.parametrize(
    ("left", "next_"), [(0, 0), (626, 0), (2, 624), (624, 2), (1, 625), (1, 1 << 32)]
)
def test_what_is_no_state_is_refused(left, next_):
    """Nothing beside the words is read."""
    state = torch.Generator().get_state()
    state.numpy()[8:12] = list(struct.pack("<I", left))
    state.numpy()[16:24] = list(struct.pack("<Q", next_))
    with pytest.raises(ValueError, match="words left"):
        draw_permutation(state, 10, True)
    with pytest.raises(ValueError, match="words left"):
        skip_draws(state, 10)
    with pytest.raises(ValueError, match="no state of 624 words"):
        skip_draws(state[:5000], 10)
    with pytest.raises(ValueError, match="4294967296 numbers"):
        draw_permutation(state, 1 << 32, True)

"""
What torch notes of a tensor is read where it stands, and says the same as torch when it is asked.
"""

import pytest
import torch

from forgery import Forger
from shmloader.core import _core

SIZE = 4


def conjugated():
    return (torch.ones(SIZE, dtype=torch.complex64) * (2 + 3j)).conj()


def wanted():
    return torch.ones(SIZE, requires_grad=True)


def inferred():
    with torch.inference_mode():
        return torch.ones(SIZE)


PLAIN = {
    "float": lambda: torch.ones(SIZE),
    "double": lambda: torch.ones(SIZE, dtype=torch.float64),
    "half": lambda: torch.ones(SIZE, dtype=torch.float16),
    "int": lambda: torch.ones(SIZE, dtype=torch.int64),
    "byte": lambda: torch.ones(SIZE, dtype=torch.uint8),
    "bool": lambda: torch.ones(SIZE, dtype=torch.bool),
    "complex": lambda: torch.ones(SIZE, dtype=torch.complex64),
    "view": lambda: torch.ones(3, SIZE)[1],
    "detached": lambda: wanted().detach(),
    "detached result": lambda: (wanted() * 2).detach(),
    "negated twice": lambda: torch._neg_view(torch._neg_view(torch.ones(SIZE))),
    "conjugated twice": lambda: conjugated().conj(),
    "resolved": lambda: conjugated().imag.resolve_neg(),
    "for inference": inferred,
    "a hook's": lambda: torch.ones(SIZE).requires_grad_().requires_grad_(False),
}
NOT_PLAIN = {
    "negated": lambda: torch._neg_view(torch.ones(SIZE)),
    "negated double": lambda: torch._neg_view(torch.ones(SIZE, dtype=torch.float64)),
    "negated complex": lambda: torch._neg_view(torch.ones(SIZE, dtype=torch.complex64)),
    "negated part, contiguous": lambda: conjugated().imag.as_strided((SIZE,), (1,)),
    "one negated number": lambda: conjugated().imag[:1].expand(1),
    "conjugated": conjugated,
    "leaf": wanted,
    "result": lambda: wanted() * 2,
    "view of a leaf": lambda: wanted()[:],
    "parameter": lambda: torch.nn.Parameter(torch.ones(SIZE)),
}


@pytest.fixture(params=["read", "asked"])
def how(request):
    """
    Have torch's notes read, and torch asked.
    """
    if request.param == "asked":
        _core.forget_notes()
    yield
    _core.find_notes()


@pytest.fixture
def desk():
    """
    A worker's desk with a slot in hand.
    """
    forger = Forger()
    assert forger.ledger.place(0, 0, [0])
    forger.desk.take(1.0)
    yield forger.desk
    forger.close()


def is_gathered(desk, tensor):
    """
    Returns True if samples like this are gathered into the slot as bytes.
    """
    gathered = desk.gather("tensors", [tensor, tensor])
    assert gathered is None or torch.equal(torch.stack([tensor, tensor]), gathered)
    return gathered is not None


def test_places_are_found():
    """With this torch both kinds of notes are found, so nothing is asked per sample."""
    assert 0 not in _core.note_places()


@pytest.mark.parametrize("make", PLAIN.values(), ids=PLAIN)
def test_plain_tensors_are_gathered(how, desk, make):
    """Bytes are values where torch notes nothing, whatever a tensor was before."""
    assert is_gathered(desk, make())


@pytest.mark.parametrize("make", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_other_tensors_are_left_to_torch(how, desk, make):
    """Where bytes are not the values, or autograd is involved, torch collates."""
    assert not is_gathered(desk, make())


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_places_are_found_in_any_mode(mode):
    """Whoever imports first may be in any mode; no random number is drawn meanwhile."""
    found, state = _core.note_places(), torch.get_rng_state()
    _core.forget_notes()
    with mode():
        _core.find_notes()

    assert found == _core.note_places()
    assert torch.equal(state, torch.get_rng_state())


def test_torch_that_says_less_is_asked(monkeypatch):
    """Where torch does not tell its keys or its own object's address, nothing is guessed."""
    found = _core.note_places()
    monkeypatch.delattr(torch._C, "_dispatch_keys")
    _core.forget_notes()
    _core.find_notes()
    assert (0, found[1]) == _core.note_places()

    monkeypatch.undo()
    _core.find_notes()
    assert found == _core.note_places()

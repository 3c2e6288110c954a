"""
Three fields of torch's own object are read in place, and say the same as torch when it is asked.
"""

import pytest
import torch

from shmloader.core import _core
from tests.helpers.forgery import Forger
from tests.helpers.stage import run_file

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
    "bool": lambda: torch.ones(SIZE, dtype=torch.bool),
    "complex": lambda: torch.ones(SIZE, dtype=torch.complex64),
    "view": lambda: torch.ones(3, SIZE)[1],
    "detached": lambda: wanted().detach(),
    "detached result": lambda: (wanted() * 2).detach(),
    "negated twice": lambda: torch._neg_view(torch._neg_view(torch.ones(SIZE))),
    "conjugated twice": lambda: conjugated().conj(),
    "resolved": lambda: conjugated().imag.resolve_neg(),
    "for inference": inferred,
    "cube": lambda: torch.ones(2, SIZE, 3),
    "complex cube": lambda: torch.ones(2, SIZE, 3, dtype=torch.complex128),
    "detached complex": lambda: torch.ones(
        SIZE, dtype=torch.complex64, requires_grad=True
    ).detach(),
    "detached parameter": lambda: torch.nn.Parameter(torch.ones(SIZE)).detach(),
    "a hook's": lambda: torch.ones(SIZE).requires_grad_().requires_grad_(False),
}
NOT_PLAIN = {
    "negated": lambda: torch._neg_view(torch.ones(SIZE)),
    "negated complex": lambda: torch._neg_view(torch.ones(SIZE, dtype=torch.complex64)),
    "negated part, contiguous": lambda: conjugated().imag.as_strided((SIZE,), (1,)),
    "one negated number": lambda: conjugated().imag[:1].expand(1),
    "conjugated": conjugated,
    "conjugated leaf": lambda: torch.ones(SIZE, dtype=torch.complex64, requires_grad=True).conj(),
    "complex leaf": lambda: torch.ones(SIZE, 2, dtype=torch.complex64, requires_grad=True),
    "leaf by a call": lambda: torch.ones(2, SIZE).requires_grad_(),
    "transposed leaf": lambda: torch.ones(1, SIZE).requires_grad_().t(),
    "leaf": wanted,
    "result": lambda: wanted() * 2,
    "view of a leaf": lambda: wanted()[:],
    "parameter": lambda: torch.nn.Parameter(torch.ones(SIZE)),
}


@pytest.fixture(params=["read", "asked", "not found"])
def how(request, monkeypatch):
    """Have torch's fields read, or torch asked, also because no field is at its address."""
    if request.param == "not found":
        monkeypatch.setattr(torch.Tensor, "_cdata", property(lambda _: 1), raising=False)
        _core.find_fields()
        assert (0, 0, 0) == _core.field_places()
    elif request.param == "asked":
        _core.forget_fields()
    yield
    monkeypatch.undo()
    _core.find_fields()


@pytest.fixture
def desk():
    """A worker's desk with a slot in hand."""
    forger = Forger()
    assert forger.ledger.place(0, 0, [0])
    forger.desk.take(1.0)
    yield forger.desk
    forger.close()


def is_gathered(desk, tensor):
    """Returns True if samples like this are gathered into the slot as bytes."""
    gathered = desk.collate([tensor, tensor], {}, lambda *_, **__: None)
    assert gathered is None or torch.equal(torch.stack([tensor, tensor]), gathered)
    return gathered is not None


def test_places_are_found():
    """With this torch all fields are found, so torch is not called per sample."""
    assert 0 not in _core.field_places()


@pytest.mark.core(first=1)
@pytest.mark.parametrize("make", PLAIN.values(), ids=PLAIN)
def test_plain_tensors_are_gathered(how, desk, make):
    """Bytes are values if the fields say nothing else, whatever a tensor was before."""
    assert is_gathered(desk, make())


@pytest.mark.core(first=1)
@pytest.mark.parametrize("make", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_other_tensors_are_left_to_torch(how, desk, make):
    """If bytes are not the values, or autograd is involved, torch collates."""
    assert not is_gathered(desk, make())


FOREIGN = {
    "meta": lambda: torch.empty(SIZE, device="meta"),
    "sparse": lambda: torch.eye(SIZE).to_sparse(),
    "sparse rows": lambda: torch.eye(SIZE).to_sparse_csr(),
    "quantised": lambda: torch.quantize_per_tensor(torch.ones(SIZE), 0.1, 0, torch.quint8),
}


@pytest.mark.core(first=1)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", FOREIGN.values(), ids=FOREIGN)
def test_dlpack_is_not_asked_about_other_memory(make):
    """DLPack would refuse it with an error that takes a millisecond; plain ones it is asked."""
    assert _core.is_foreign(make())
    assert not any(_core.is_foreign(plain()) for plain in PLAIN.values())


PLACES = "from shmloader.core import _core; print(0 in _core.field_places())"


@pytest.mark.thorough
@pytest.mark.parametrize(("value", "is_off"), [("0", "True"), ("1", "False"), ("", "False")])
def test_reading_in_place_is_switched(torch_alone, tmp_path, value, is_off):
    """SHMLOADER_TORCH_FIELDS=0 has torch asked; 1, like nothing, has its fields read."""
    ended = run_file(torch_alone, tmp_path, PLACES, SHMLOADER_TORCH_FIELDS=value)

    assert (0, [is_off], "") == ended

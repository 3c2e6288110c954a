"""pin_memory=True: torch's semantics, with copies made by our own code."""

import pytest
import torch

from shmloader import DataLoader
from shmloader.core import copy_tensor
from shmloader.pinning.pinned_slots import pin
from tests.device.loaders import Images, Pair


class Custom:
    """A batch class with a way of its own to be pinned."""

    def __init__(self, samples):
        self.x = torch.tensor(samples)
        self.pinned_by = None

    def pin_memory(self):
        self.pinned_by = "itself"
        return self


def in_place_of_pinned(leaf):
    return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype)


class Broken(Custom):
    """The same, which fails for one batch."""

    def pin_memory(self):
        if self.x[0] == 2:
            raise LookupError("not this batch")
        return self


@pytest.fixture
def pinning(monkeypatch):
    """Have iterators pin as if there were an accelerator; yields what memory was made."""
    made = []

    def pin_here(leaf):
        def empty(like):
            made.append(in_place_of_pinned(like))
            return made[-1]

        return pin(leaf, empty)

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr("shmloader.pinning.host_delivery.pin", pin_here)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self, *_: self)
    return made


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(600_000.0).reshape(600, 1000),
        torch.arange(600_000.0).reshape(600, 1000).t(),
        torch.arange(12, dtype=torch.int8).reshape(3, 4),
        torch.empty(0, 3),
        torch.tensor(5, dtype=torch.bfloat16),
        torch.rand(4, 3, 8, 8).to(memory_format=torch.channels_last),
    ],
    ids=["large", "transposed", "bytes", "empty", "scalar", "channels_last"],
)
def test_dense_tensors_are_copied(tensor):
    """Whole, with their strides."""
    copied = pin(tensor, in_place_of_pinned)
    assert copied is not tensor
    assert copied.stride() == tensor.stride()
    assert torch.equal(copied, tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(3.0).expand(4, 3),
        torch.rand(6, 6)[::2],
        torch.rand(3, requires_grad=True),
        torch.eye(2, dtype=torch.complex64).conj(),
        torch.nn.Parameter(torch.rand(2)),
    ],
    ids=["expanded", "gaps", "grad", "conj", "parameter"],
)
def test_other_tensors_are_left_to_torch(tensor):
    """Which knows how to pin them, or says why not."""
    assert pin(tensor, in_place_of_pinned) is tensor


def test_a_copy_is_refused_between_unequal_tensors():
    """Of another type, shape or strides: nothing is written."""
    source = torch.arange(6.0).reshape(2, 3)
    for to in (torch.zeros(2, 3, dtype=torch.int32), torch.zeros(3, 2), torch.zeros(3, 2).t()):
        assert not copy_tensor(to, source)
        assert 0 == to.sum()
    assert not copy_tensor(torch.zeros(2).to_sparse(), torch.zeros(2).to_sparse())


def test_batches_are_pinned_once_and_their_slots_are_free(pinning):
    """Each tensor is copied into the memory that was made for it, and no batch is held."""
    with DataLoader(Images(8), 2, num_workers=2, pin_memory=True) as loader:
        held = []
        for number, (images, labels) in enumerate(loader):
            assert images[:, 0, 0].tolist() == labels.tolist() == [2 * number, 2 * number + 1]
            held += [images, labels]
            assert [] == loader.held()
        assert 0 == loader.stats().spilled
        assert loader.stats().epochs[-1].copy_s > 0
    assert 8 == len(pinning)
    made = {tensor.data_ptr() for tensor in pinning}
    assert all(tensor.data_ptr() in made for tensor in held)


def test_the_structure_is_what_torch_makes_of_it(pinning):
    """Containers, and a user's own pin_memory() method, which gets tensors as it always did."""
    kinds = {"pair": lambda s: Pair(torch.tensor(s), ["text", 1]), "custom": Custom}
    for name, collate in kinds.items():
        loader = DataLoader(range(2), 2, num_workers=1, pin_memory=True, collate_fn=collate)
        (batch,) = loader
        assert type(batch).__name__ == name.title()
        if name == "custom":
            assert "itself" == batch.pinned_by
        assert [0, 1] == batch.x.tolist()


def test_an_error_of_pinning_comes_as_torchs_own(monkeypatch, pinning):
    """With torch's words for where it was, and the batches behind it come."""

    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    loader = DataLoader(range(6), 2, num_workers=1, pin_memory=True, collate_fn=Broken)
    iterator = iter(loader)
    assert 0 == next(iterator).x[0]
    with pytest.raises(LookupError, match="not this batch") as raised:
        next(iterator)
    assert "in pin memory thread for device 0" in str(raised.value)
    assert 4 == next(iterator).x[0]
    del iterator

"""Batches on a device with the other options, and what is noted for the consumer's stream."""

import gc
import weakref
from collections import UserDict
from dataclasses import dataclass

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence
from torch.utils.data import default_collate

from shmloader import Device
from shmloader.device.walk import moved, tensors_in
from tests.device.loaders import PAIRS, Images, Pair, Record, all_kinds, labels_of, loader_of
from tests.device.standin import StandIn, extent_of

KEPT = []


def kept(samples):
    """Collate, and keep the last batch, as a cache does."""
    KEPT.append(default_collate(samples))
    del KEPT[:-1]
    return KEPT[-1]


OPTIONS = [
    {"in_order": False},
    {"assignment": "dynamic"},
    {"seed_by": "batch", "fetch_threads": 2},
    {"persistent_workers": True},
    {"restarts": 1},
    {"slots": 1, "num_workers": 1},
    {"ring_bytes": 16 << 20},
]


@pytest.mark.core(first=1)
@pytest.mark.parametrize(
    "options", OPTIONS, ids=lambda options: "-".join(map(str, options.values()))
)
def test_other_options_mean_the_same(gpu, backend, options):
    """Each batch once, whole, and in order if that was asked; twice in a row."""
    with loader_of(Images(12), **options) as loader:
        for _ in range(2):
            batches = list(loader)
            gpu.driver.finish()
            found = labels_of(batches)
            assert PAIRS[:6] == sorted(found)
            assert found == sorted(found) or options.get("in_order") is False
            del batches


@pytest.mark.thorough
def test_an_epoch_that_is_left_with_copies_under_way(gpu):
    """The next one's batches are its own."""
    with loader_of(persistent_workers=True) as loader:
        for _ in range(3):
            batch = next(iter(loader))
        batches = list(loader)
        gpu.driver.finish()
        assert PAIRS == labels_of(batches)
        assert [[0, 1]] == labels_of([batch])


@pytest.mark.thorough
def test_what_a_worker_keeps_is_copied_out_first(gpu, backend):
    """It may write to it again while the device reads."""
    with loader_of(collate_fn=kept) as loader:
        batches = list(loader)
        gpu.driver.finish()
        assert PAIRS == labels_of(batches)
        stats = loader.stats()
        # Once many slots are retired, workers collate in private memory.
        assert stats.spills["kept_by_worker"] == stats.copied["staged"] > 0


@pytest.mark.thorough
def test_a_dropped_batch_is_gone(gpu):
    """Nothing here keeps what was handed out: the device has room for few batches."""
    with loader_of() as loader:
        batches = iter(loader)
        gone = [weakref.ref(tensor) for tensor in next(batches)]
        gpu.driver.finish()
        gpu.driver.kept.clear()
        gc.disable()
        try:
            assert [None, None] == [reference() for reference in gone]
        finally:
            gc.enable()
        del batches


@pytest.mark.thorough
def test_the_mode_around_next_is_not_that_of_later_batches(gpu, backend):
    """Batches that are copied ahead may be used where inference mode, or a default, is over."""
    for mode in (torch.inference_mode(), torch.device("meta")):
        with loader_of(device=Device("cuda", prefetch=3)) as loader:
            batches = iter(loader)
            with mode:
                found = [next(batches)]
            found += list(batches)
            gpu.driver.finish()
            assert PAIRS == labels_of(found)
            assert not any(leaf.is_inference() for batch in found for leaf in batch)


@pytest.mark.thorough
def test_every_storage_is_noted_for_the_stream(backend):
    """Those of large leaves, of blocks, and of what a transform makes, even inside of objects."""

    class Holder:
        __slots__ = ("inside",)

        def __init__(self, inside):
            self.inside = inside

    def transform(batch):
        return {**batch, "made": Holder({"x": [torch.ones(5), (torch.ones(6),)]})}

    for options in ({}, {"device": Device("cuda", transform=transform)}):
        backend.recorded.clear()
        with loader_of(range(2), collate_fn=all_kinds, **options) as loader:
            (batch,) = loader
            found = {extent_of(t) for t in tensors_in(batch, torch.device("cpu")) if t.nbytes}
        on_host = {
            extent_of(part) for part in (batch["sparse"]._indices(), batch["sparse"]._values())
        }
        assert found - on_host <= backend.recorded
        assert len(found - on_host) >= (5 if options else 3)


def test_batches_without_workers_are_made_anew():
    """Plain tensors are moved once each; containers are new, all else is the same object."""
    shared, grad = torch.ones(2), torch.ones(1, requires_grad=True)
    text = object()
    batch = UserDict(
        a=[shared, shared], b=Pair(shared, text), c=Record(torch.zeros(1), "one"), d=grad
    )
    seen = []

    def move(leaf):
        seen.append(leaf)
        return leaf + 1

    made = moved(batch, move)
    assert UserDict is type(made)
    assert made["a"][0] is made["a"][1] is made["b"].x
    assert made["b"].y is text
    assert ("one", 1.0) == (made["c"].name, made["c"].x.item())
    assert made["d"] is grad
    assert 2 == len(seen)
    assert 1.0 == batch["a"][0][0].item()


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_tensors_are_found_wherever_they_are():
    """In attributes, slots, sets and sparse tensors, each once; a circle ends."""

    class Node:
        def __init__(self, tensor):
            self.tensor = tensor
            self.itself = self

    plain, sparse = torch.ones(2), torch.eye(2).to_sparse()
    csr = torch.eye(2).to_sparse_csr()
    value = [Node(plain), {plain}, {"x": (sparse, csr)}, "text", 3, None, torch.nn.Linear]
    found = list(tensors_in(value, torch.device("cpu")))
    assert 1 + 2 + 3 == len(found)
    assert any(tensor is plain for tensor in found)
    assert [] == list(tensors_in(value, torch.device("cuda", 0)))


@dataclass(slots=True)
class Slotted:
    """A batch class without a __dict__."""

    x: torch.Tensor


class Set(Slotted):
    """A batch class whose state only a function knows how to set."""

    def __reduce__(self):
        return Set, (None,), [self.x], None, None, lambda made, state: setattr(made, "x", *state)


@pytest.mark.parametrize("kind", [Slotted, Set])
def test_a_container_is_made_anew_as_pickle_makes_it(kind):
    """Without a dict to be filled, and by its own function."""
    assert 3.0 == moved(kind(torch.ones(2)), lambda leaf: leaf + 2).x[0].item()


@pytest.mark.filterwarnings("ignore::UserWarning")  # some kinds are deprecated, or prototypes
def test_what_workers_do_not_send_as_plain_tensors_is_not_moved_without_them():
    """So the same leaves are on the device with and without workers."""
    made = [
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
        torch.ones(2, dtype=torch.complex32),
        torch.ones(2, dtype=torch.complex64).conj(),
        torch.ones(2, device="meta"),
        pack_sequence([torch.ones(2)]),
    ]
    assert all(old is new for old, new in zip(made, moved(made, lambda leaf: None), strict=True))


class OnMeta(StandIn):
    """A device that is another one than the CPU, and holds no values."""

    device = torch.device("meta")

    def copy(self, to, source):
        pass


def packed(samples):
    """A batch for a recurrent net."""
    return {"x": torch.ones(3), "packed": pack_sequence([torch.ones(3), torch.ones(2)])}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_packed_sequence_stays_as_it_is(monkeypatch, workers):
    """One of its tensors must be on the CPU: only its own to() knows that."""
    for module in ("to_device", "in_process"):
        monkeypatch.setattr(f"shmloader.device.{module}.backend_for", lambda device: OnMeta())
    loader = loader_of(range(2), collate_fn=packed, num_workers=workers)
    (batch,) = loader
    assert "meta" == batch["x"].device.type
    assert [3, 2] == pad_packed_sequence(batch["packed"])[1].tolist()
    assert "meta" == batch["packed"].to("meta").data.device.type


class Wrapped(torch.Tensor):
    """A tensor around another one, which knows no operation at all."""

    @staticmethod
    def __new__(cls, inside):
        return torch.Tensor._make_wrapper_subclass(cls, inside.shape, device=inside.device)

    def __init__(self, inside):
        self.inside = inside

    def __tensor_flatten__(self):
        return ["inside"], None

    @classmethod
    def __torch_dispatch__(cls, function, *arguments):
        raise NotImplementedError(function)


@pytest.mark.filterwarnings("ignore")
def test_memory_is_found_of_tensors_of_which_torch_notes_no_stream():
    """record_stream() is for plain tensors: those that hold the memory are named."""
    inside = torch.ones(3)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8)
    found = list(tensors_in([Wrapped(inside), nested, quantized], torch.device("cpu")))
    expected = set(map(extent_of, (inside, nested, quantized)))
    assert expected == set(map(extent_of, found))
    assert not any(type(t) is Wrapped or t.is_nested or t.is_quantized for t in found)

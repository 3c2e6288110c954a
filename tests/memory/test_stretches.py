"""Invariant 12: what a kept leaf costs is what it weighs, in its slot or copied out of it."""

import warnings

import numpy
import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader

from shmloader import DataLoader, WorkerBroken, empty
from tests.helpers.datasets import Computed, state
from tests.protocol.test_layout import TAG, begin, number, same, tensor_node

LARGE = 1 << 20
MANY = 1000


class Wrapped:
    """An object that travels as a pickle with a buffer."""

    def __init__(self, array):
        self.array = array


# What is kept of a batch, and how it is read.
KEPT = {
    "tensor": (torch.arange(5), torch.Tensor.tolist),
    "view": (torch.arange(5), lambda tensor: tensor[0:].tolist()),
    "strided": (torch.arange(10)[::2], torch.Tensor.tolist),
    "array": (numpy.arange(5), numpy.ndarray.tolist),
    "fortran": (numpy.asfortranarray(numpy.arange(6).reshape(2, 3)), numpy.ndarray.tolist),
    "buffer": (Wrapped(numpy.arange(5)), lambda odd: odd.array.tolist()),
    "text": ("text", str),
    "empty tensor": (torch.empty(0, 3), torch.Tensor.tolist),
    "empty array": (numpy.empty((0, 3)), numpy.ndarray.tolist),
}


@pytest.mark.core(values=1)
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", KEPT)
def test_small_leaf_holds_no_slot(forger, name, first):
    """A small leaf beside a large one is right and holds no slot, wherever it stands."""
    leaf, read = KEPT[name]
    large = torch.arange(LARGE)
    forger.write([leaf, large] if first else [large, leaf])
    one, other = forger.read()
    kept, image = (one, other) if first else (other, one)

    assert torch.equal(large, image)
    assert 1 == forger.ledger.held()[0][2]
    del one, other, image
    assert 0 == forger.ledger.counts()["leased"]
    assert read(leaf) == read(kept)


def test_large_leaf_holds_its_slot(forger):
    """The large leaf of a batch is a view of the slot, without the small ones."""
    forger.write([torch.zeros(LARGE), torch.arange(3)])
    image, label = forger.read()

    del label
    assert 1 == forger.ledger.counts()["leased"]
    del image
    assert 0 == forger.ledger.counts()["leased"]


SHAPES = {
    "overlap": lambda: [(base := torch.arange(3000))[:2000], base[1000:]],
    "columns": lambda: list(torch.arange(6000).reshape(2000, 3).unbind(1)),
    "rows": lambda: list(torch.arange(9999).reshape(3, 3333).unbind(0)),
    "twice": lambda: [torch.arange(2000)] * 2,
    "many": lambda: [torch.full((50,), i) for i in range(MANY)],
    "arrays": lambda: [numpy.full(50, i) for i in range(MANY)],
    "some large": lambda: [torch.full((4000 * (i % 3),), i) for i in range(30)],
    "odd sizes": lambda: [torch.full((i * i,), i % 100, dtype=torch.uint8) for i in range(150)],
}


@pytest.mark.core(values=1)
@pytest.mark.parametrize("beside", [0, LARGE])
@pytest.mark.parametrize("spill", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_leaves_of_any_shape_stay_right(forger, name, spill, beside):
    """Leaves that overlap, touch or lie apart come out equal, beside a large leaf or alone."""
    batch = [*SHAPES[name](), torch.arange(beside)]
    forger.write(batch)

    assert same(batch, forger.read(spill))


@pytest.mark.parametrize("spill", [False, True])
def test_leaves_made_in_any_order(forger, spill):
    """Leaves that were made in the slot may stand in the batch in another order, or be left out."""
    forger.ledger.place(0, 0, [0])
    forger.desk.take(1.0)
    made = [forger.desk.empty((size,), torch.uint8) for size in (5, 90_000, 20_000, 6, 100_000, 7)]
    for value, tensor in enumerate(made):
        tensor.fill_(value)
    batch = [made[4], made[0], made[2], made[5], torch.arange(3)]
    expected = [leaf.clone() for leaf in batch]
    forger.desk.write(batch, False)
    del made, batch, tensor
    forger.desk.commit()

    assert same(expected, forger.read(spill))


@pytest.mark.parametrize("spill", [False, True])
def test_leaves_stay_aligned(forger, spill):
    """A leaf that is copied out lies as far from a cache line's start as it did in the slot."""
    forger.ledger.place(0, 0, [0])
    forger.desk.take(1.0)
    made = forger.desk.empty((400_000,), torch.uint8)
    batch = [made[:200_000], made[200_040:250_000], made[250_011:250_020]]
    forger.desk.write(batch, False)
    del made, batch
    forger.desk.commit()

    assert [0, 40, 250_011 % 64] == [leaf.data_ptr() % 64 for leaf in forger.read(spill)]


@pytest.mark.thorough
def test_pieces_of_a_spilled_batch_die_one_by_one(run_program):
    """Of a spilled batch of large leaves each gives its memory back by itself."""
    script = """
import torch
from shmloader.worker.growth import private_bytes
from tests.helpers.forgery import Forger

forger = Forger(ring_bytes=1 << 29)
forger.write([torch.ones(40_000_000, dtype=torch.uint8) for _ in range(3)])
before = private_bytes()
batch = forger.read(True)
for _ in range(3):
    print(round((private_bytes() - before) / 40e6), int(batch[-1][-1]))
    del batch[0]
    batch.append(torch.ones(1))
print(round((private_bytes() - before) / 40e6))
"""
    status, lines, errors = run_program(script)

    assert (0, "") == (status, errors)
    assert ["3 1", "2 1", "1 1", "0"] == lines


KEEPING = """
import sys, warnings
import torch
from shmloader import DataLoader
from shmloader.worker.growth import private_bytes
from tests.helpers.datasets import Computed

warnings.simplefilter("ignore")

image = torch.ones(5_000_000, dtype=torch.uint8)
dataset = Computed(120, lambda i: (image, torch.full(({mask},), i, dtype=torch.uint8), i))
kept = []
with DataLoader(dataset, batch_size=2, num_workers=2, slots=8) as loader:
    before = private_bytes()
    for batch in loader:
        kept.append({kept})  # while the loop still holds the whole batch
    batch = None
    grown = (private_bytes() - before) / 1e6
    stats = loader.stats()
print(grown, stats.spilled, stats.slots["leased"])
print(all(int(leaf[-1].max()) in range(120) for leaf in kept))
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kept", "mask", "most_mb", "most_leased"),
    [
        ("batch[2]", 1, 20, 0),
        ("(batch[0][:, ::1000].float(), batch[2])", 1, 20, 0),
        ("batch[1]", 400_000, 48 + 20, 2),
    ],
    ids=["labels", "outputs and labels", "masks"],
)
def test_an_epoch_of_kept_leaves(run_program, kept, mask, most_mb, most_leased):
    """600 MB of images pass by, and what is kept of their batches costs what it weighs."""
    status, lines, errors = run_program(KEEPING.format(kept=kept, mask=mask))

    assert (0, "") == (status, errors)
    grown, spilled, leased = lines[0].split()
    assert float(grown) < most_mb
    assert 0 == int(spilled)
    assert int(leased) <= most_leased
    assert "True" == lines[1]


def labelled(index):
    """An image of 128 KiB, a mask of 16 KiB and the index."""
    image = torch.full((1 << 17,), index % 251, dtype=torch.uint8)
    return image, image[: 1 << 14].clone(), index


@pytest.mark.core(first=1)
@pytest.mark.parametrize("leaf", [0, 1, 2])
def test_kept_leaves_are_torchs(leaf):
    """Keeping one leaf of each batch gives what torch gives."""
    options = {"batch_size": 4, "num_workers": 2}
    dataset = Computed(120, labelled)
    wanted = [made[leaf] for made in TorchLoader(dataset, **options)]
    with warnings.catch_warnings(), DataLoader(dataset, **options) as loader:
        warnings.simplefilter("ignore")
        kept = [made[leaf] for made in loader]
        assert leaf == 0 or loader.stats().spilled == 0
    assert same(wanted, kept)


def test_the_last_spare_slots_come_back():
    """Middle-sized leaves that are kept hold all slots that can be spared but two."""
    with DataLoader(Computed(60, labelled), batch_size=2, num_workers=1, slots=8) as loader:
        kept = [made[1] for made in loader]
        assert state(loader, "leased") == 8 - 2 - 2
        assert loader.stats().spilled == 0
    assert [2 * i % 251 for i in range(30)] == [int(mask[0, -1]) for mask in kept]


def collate_beside_scratch(samples):
    """Make a batch that is small beside what was taken from its slot for it."""
    scratch = empty((10_000_000,), torch.uint8)
    return scratch[:3].fill_(samples[0]).clone()


def test_memory_that_no_leaf_uses_is_not_kept():
    """Slot memory that no leaf lies in holds no slot, however large it is."""
    options = {"batch_size": 1, "num_workers": 1, "collate_fn": collate_beside_scratch}
    with DataLoader(Computed(20, int), **options) as loader:
        kept = list(loader)
        assert (0, 0) == (state(loader, "leased"), loader.stats().spilled)
    assert [*range(20)] == [int(leaf[0]) for leaf in kept]


# Lists that no honest worker wrote, for a payload of 200,000 bytes


def stretches(*bounds, count=None):
    """Write a list of stretches."""
    count = len(bounds) // 2 if count is None else count
    return TAG["stretches"] + number(count, *bounds)


LEAF = tensor_node([10], [1], offset=100_000)
BROKEN = {
    "a list and nothing else": stretches(0, 200_000),
    "a list cut short": TAG["stretches"] + number(1)[:5],
    "a count cut short": TAG["stretches"],
    "fewer than their number": stretches(0, 10, count=100) + LEAF,
    "more than there are bytes": stretches(0, 10, count=1 << 60) + LEAF,
    "a negative number": stretches(count=-1) + LEAF,
    "beyond the payload": stretches(0, 200_001) + LEAF,
    "beyond all payloads": stretches(0, -1) + LEAF,
    "an end before its start": stretches(150_000, 140_000) + LEAF,
    "nothing between start and end": stretches(100_000, 100_000) + LEAF,
    "two that overlap": stretches(0, 120_000, 100_000, 200_000) + LEAF,
    "two in another order": stretches(100_000, 200_000, 0, 100_000) + LEAF,
    "none": stretches() + LEAF,
    "none with the leaf": stretches(0, 100_000, 100_040, 200_000) + LEAF,
    "one that ends in the leaf": stretches(0, 100_020) + LEAF,
    "one that begins in the leaf": stretches(100_020, 200_000) + LEAF,
    "two that share the leaf": stretches(0, 100_020, 100_020, 200_000) + LEAF,
    "two lists": 2 * stretches(0, 200_000) + LEAF,
    "a list inside": begin("list") + number(1) + stretches(0, 200_000),
}


@pytest.mark.core(values=1)
@pytest.mark.parametrize("spill", [False, True])
@pytest.mark.parametrize("name", BROKEN)
def test_broken_list_is_refused(forger, name, spill):
    """A list of stretches that contradicts itself or its leaves is refused, and its slot free."""
    slot = forger.write(torch.zeros(200_000, dtype=torch.uint8))
    forger.forge_layout(slot, BROKEN[name])
    with pytest.raises(WorkerBroken):
        forger.read(spill)
    counts = forger.ledger.counts()

    assert (0, 0) == (counts["leased"], counts["ready"])


@pytest.mark.parametrize("spill", [False, True])
def test_list_that_is_true_is_read(forger, spill):
    """The lists above are refused for what is wrong with them: one with nothing wrong is read."""
    slot = forger.write(torch.zeros(200_000, dtype=torch.uint8))
    forger.forge_layout(slot, stretches(0, 100_000, 100_000, 100_040) + LEAF)

    assert same(torch.zeros(10), forger.read(spill))

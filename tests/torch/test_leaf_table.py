"""The table of leaves: each is equal in every bit, and lies where the table says."""

import os
import signal

import pytest
from torch.utils.data import Dataset

from shmloader import DataLoader
from tests.helpers.leaves import LEAVES
from tests.helpers.leaves.frames import start_polars
from tests.helpers.leaves.parts import are_same, where
from tests.helpers.programs import run

pytestmark = [
    pytest.mark.filterwarnings("ignore::shmloader.RetentionWarning"),
    pytest.mark.filterwarnings("ignore::shmloader.RestartWarning"),
    # Of the libraries that some leaves need.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]
# Those that a module of shmloader/core/kinds takes apart, one of each way there.
TAKEN_APART = [
    "recarray", "masked array", "memory-mapped array", "subclass of ndarray", "ndarray, object",
    "PIL image, RGB", "PIL image, palette", "PIL image from a JPEG", "PIL image of 20 MB",
    "JAX array", "polars, text", "polars Series",
]  # fmt: skip


class Leaves(Dataset):
    """Makes a leaf for each index; the worker that is asked for `fatal` first dies."""

    def __init__(self, name, count, marker=None, fatal=None):
        self.name, self.count, self.marker, self.fatal = name, count, marker, fatal

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index == self.fatal and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return LEAVES[self.name].make()


def identity(batch):
    return batch


def open_loader(dataset, **options):
    return DataLoader(
        dataset, batch_size=None, collate_fn=identity, num_workers=1, timeout=60,
        multiprocessing_context=LEAVES[dataset.name].context, **options,
    )  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def polars_runs():
    """Open what polars opens once in a process."""
    start_polars()


@pytest.fixture
def leaf(request):
    """Give a leaf of the table, if what it needs is installed."""
    leaf = LEAVES[request.param]
    missing = leaf.missing()
    if missing:
        pytest.skip(f"{missing} is not installed")
    return leaf


@pytest.mark.core(every=4)
@pytest.mark.parametrize("leaf", LEAVES, indirect=True)
def test_a_leaf_lies_where_the_table_says(leaf):
    """Each leaf arrives as it was made, in the slot if the table says so."""
    with open_loader(Leaves(leaf.name, 1)) as loader:
        (batch,) = loader
        assert are_same(leaf.make(), batch)
        assert ("all" == where(batch)) == leaf.in_slot


@pytest.mark.core(every=3)
@pytest.mark.parametrize("leaf", TAKEN_APART, indirect=True)
def test_leaves_are_right_when_all_are_held_and_a_worker_dies(leaf, tmp_path):
    """Every batch of an epoch is equal while all are held, across the death of their worker."""
    dataset = Leaves(leaf.name, 12, tmp_path / "has died", fatal=5)
    with open_loader(dataset, restarts=1, slots=3) as loader:
        held = list(loader)
        stats = loader.stats()
    made = leaf.make()

    assert (12, 1) == (stats.batches, stats.restarts)
    assert (stats.spilled > 0) == leaf.in_slot  # nothing else is held
    assert all(are_same(made, batch) for batch in held)
    assert all(("all" == where(batch)) == leaf.in_slot for batch in held)


@pytest.mark.parametrize("leaf", ["PIL image, RGB", "masked array", "polars, text"], indirect=True)
def test_a_leaf_holds_its_slot(leaf):
    """A batch occupies its slot as long as it is held, and no longer."""
    with open_loader(Leaves(leaf.name, 4)) as loader:
        batches = iter(loader)
        batch = next(batches)
        assert 1 == len(loader.held())
        del batch
        assert 0 == len(loader.held())


def test_no_library_is_imported_for_plain_batches(tmp_path):
    """A program that has no image imports nothing for images, in trainer and worker."""
    script = """
import sys
import torch
from shmloader import DataLoader
class Samples(torch.utils.data.Dataset):
    def __len__(self): return 3
    def __getitem__(self, index):
        names = ("PIL", "polars", "jax", "pandas", "pyarrow")
        return index, [name for name in names if name in sys.modules]
if __name__ == "__main__":
    for batch in DataLoader(Samples(), batch_size=None, num_workers=1):
        print(batch)
    print([name for name in sys.modules if name.startswith("shmloader.core.kinds.")])
"""
    status, lines, errors = run(tmp_path, script)

    assert (0, "") == (status, errors)
    assert ["[0, []]", "[1, []]", "[2, []]", "[]"] == lines

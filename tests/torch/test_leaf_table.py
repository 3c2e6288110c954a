"""The table of leaves: each is equal in every bit, and lies where the table says."""

import gc

import pytest

from tests.helpers.leaves import LEAVES
from tests.helpers.leaves.parts import are_same, where
from tests.helpers.leaves.writes import WRITES

pytestmark = [
    pytest.mark.filterwarnings("ignore::shmloader.RetentionWarning"),
    pytest.mark.filterwarnings("ignore::shmloader.RestartWarning"),
    # Of the libraries that some leaves need.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]


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
def test_a_leaf_lies_where_the_table_says(leaf, forger):
    """It arrives as it was made, copied out or not, and in the slot if the table says so."""
    expected = leaf.make()
    for spill in (False, True):
        forger.write(leaf.make())
        again = forger.read(spill)
        assert are_same(expected, again)
        assert ("all" == where(again)) == leaf.in_slot
        if leaf.in_slot and not spill:
            assert 1 == forger.ledger.counts()["leased"]
        del again
        gc.collect()  # one contains itself
        assert 0 == forger.ledger.counts()["leased"]


@pytest.mark.core(every=4)
@pytest.mark.parametrize("leaf", [name for name in LEAVES if WRITES[name]], indirect=True)
def test_a_leaf_is_written_in_place_by_its_library(leaf, forger):
    """What is written shows, and in no other leaf of the batch."""
    forger.write([leaf.make(), leaf.make()])
    written, other = forger.read()
    expected = leaf.make()
    for each in (written, expected):
        WRITES[leaf.name](each)

    assert are_same(expected, written)
    assert are_same(leaf.make(), other)
    assert not are_same(expected, other)


def test_no_library_is_imported_for_plain_batches(run_program):
    """A program that has no image imports nothing for images, in trainer and worker."""
    script = """
import sys
import torch
from shmloader import DataLoader
class Samples(torch.utils.data.Dataset):
    def __len__(self): return 3
    def __getitem__(self, index):
        names = ("PIL", "pandas", "pyarrow")
        return index, [name for name in names if name in sys.modules]
if __name__ == "__main__":
    for batch in DataLoader(Samples(), batch_size=None, num_workers=1):
        print(batch)
    print([name for name in sys.modules if name.startswith("shmloader.core.kinds.")])
"""
    status, lines, errors = run_program(script)

    assert (0, "") == (status, errors)
    assert ["[0, []]", "[1, []]", "[2, []]", "[]"] == lines

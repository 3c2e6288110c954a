"""What a loader reports of the memory that it holds, and how it gives it back."""

import io

import torch

from shmloader import DataLoader
from tests.helpers.datasets import Numbered, batch
from tests.helpers.programs import wait_until


def test_held_names_the_batches_in_slots():
    """held() lists what is kept, by ticket, with its age and how much points into the slot."""
    loader = DataLoader(Numbered(40), batch_size=2, num_workers=1)
    batches = iter(loader)
    kept = [next(batches) for _ in range(3)][1]

    assert wait_until(lambda: len(loader.held()) == 1)
    (held,) = loader.held()
    assert (1, 1) == (held.ticket, held.leases)
    assert held.held_s > 0
    alias = kept[0]
    assert 1 == loader.held()[0].leases
    del kept, alias
    assert [] == loader.held()


def test_deep_rings_take_pages_as_they_fill():
    """A depth of 1,000 batches gives the whole epoch, with pages for what was in flight alone."""
    loader = DataLoader(Numbered(120), batch_size=2, num_workers=2, prefetch_factor=500)

    assert all(torch.equal(batch(i, 2), made) for i, made in enumerate(loader))
    page = 4096
    assert loader.stats().resident_bytes <= 70 * 3 * page


def first_batch():
    """One batch of two samples."""
    return next(iter(DataLoader(Numbered(40), batch_size=2, num_workers=1)))


def test_storage_is_of_the_tensor_alone():
    """A batch's storage holds its own bytes, and torch.save writes no more."""
    delivered = first_batch()
    saved, own = io.BytesIO(), io.BytesIO()
    torch.save(delivered, saved)
    torch.save(delivered.clone(), own)

    assert delivered.nbytes == delivered.untyped_storage().nbytes()
    assert own.tell() == saved.tell()

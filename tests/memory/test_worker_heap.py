"""What a worker keeps of the memory that samples took, and of what it inherited."""

from __future__ import annotations

import gc

import pytest

from shmloader import DataLoader
from shmloader.memory import policy
from shmloader.worker import heap
from shmloader.worker.growth import private_bytes
from tests.helpers.datasets import Computed


@pytest.mark.parametrize(
    ("available_bytes", "workers", "kept_bytes"),
    [
        (64 << 30, 8, 2 * policy.HEAP_BLOCK_MAX_BYTES),
        (1 << 30, 8, 2 * (1 << 30) // (policy.HEAP_PART * 8)),
        (100 << 20, 8, 0),
        (None, 2, 0),
    ],
)
def test_little_is_kept_where_memory_is_short(monkeypatch, available_bytes, workers, kept_bytes):
    """All workers together keep a 32nd of the memory that there is, and none of little."""
    made = []
    monkeypatch.setattr(heap.limits, "available_bytes", lambda: available_bytes)
    monkeypatch.setattr(heap.numpy, "empty", lambda length, _: made.append(length))
    heap.keep_freed_end(workers)

    assert kept_bytes == 2 * sum(made)
    assert not available_bytes or workers * kept_bytes <= available_bytes / 32


def written_by_collecting(_):
    """Count the bytes of pages that a full collection of garbage writes to."""
    before = private_bytes()
    gc.collect()
    return private_bytes() - before


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, {"restarts": 1}], ids=str)
def test_garbage_is_not_looked_for_in_what_was_inherited(options):
    """A collection in a forked worker leaves the pages of the trainer's objects shared."""
    options |= {"batch_size": None, "num_workers": 1, "multiprocessing_context": "fork"}
    records = [[number] for number in range(300_000)]
    with DataLoader(Computed(2, written_by_collecting), **options) as loader:
        written = list(loader)
    assert records

    assert max(written) < 4 << 20

"""
What a worker keeps in its page tables: a slot's small pages for good, huge pages for one batch.
"""

import os
import re
from pathlib import Path

import pytest
import torch

from shmloader import DataLoader
from tests.helpers.datasets import Computed

BATCH_BYTES = 12 << 20
HUGE_BYTES = 2 << 20
WORKERS = 5  # enough of them to drop pages


def blocks():
    """Samples of 6 MiB, for which a worker allocates nothing."""
    numbers = (torch.arange(BATCH_BYTES // 2 + 48) % 251).to(torch.uint8)
    return Computed(48, lambda index: numbers[index : index + BATCH_BYTES // 2])


def children(pid):
    """The processes below one."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            found += [child, *children(child)]
    return found


def in_page_tables(pid):
    """Bytes of segments in a process's page tables, and how many of those are huge pages."""
    found, is_segment = {"Rss": 0, "ShmemPmdMapped": 0}, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_segment = "/memfd:shmloader " in line
        name, _, value = line.partition(":")
        if is_segment and name in found:
            found[name] += int(value.split()[0]) * 1024
    return found["Rss"], found["ShmemPmdMapped"]


@pytest.fixture
def loader():
    """A loader whose slots have all had batches, two epochs ago."""
    with DataLoader(
        blocks(), batch_size=2, num_workers=WORKERS, persistent_workers=True,
        multiprocessing_context="fork",
    ) as loader:  # fmt: skip
        for _ in range(3):
            for batch in loader:
                batch[:, ::4096].sum()  # all its pages come into the trainer's tables
                del batch
        yield loader


def test_workers_drop_huge_pages(loader):
    """If all pages are huge, no worker keeps more than a batch and the rests of slots."""
    touched, huge = in_page_tables(os.getpid())
    if touched - huge >= HUGE_BYTES:
        # A slot with some small pages stays in a worker's tables as a whole.
        pytest.skip("huge pages are not to be had here, or too dear for some slots")
    slots = loader.stats().slots
    rests = (sum(slots.values()) - slots["spare"]) * HUGE_BYTES
    for worker in children(os.getpid()):
        mapped, _ = in_page_tables(worker)
        assert mapped <= rests + BATCH_BYTES


@pytest.mark.thorough
def test_dropped_pages_are_the_files(loader):
    """What workers drop is still there: the batches of another epoch are right."""
    expected = blocks()
    rights = [
        torch.equal(batch, torch.stack([expected[2 * turn], expected[2 * turn + 1]]))
        for turn, batch in enumerate(loader)
    ]

    assert 24 * [True] == rights

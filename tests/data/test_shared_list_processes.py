"""`SharedList` in other processes: by every way to start one, one mapping and no copied page."""

import mmap
import multiprocessing
import os
import re
from pathlib import Path

import pytest
import torch

import shmloader
from shmloader import DataLoader, SharedDict, SharedList
from tests.helpers.copies import Child
from tests.helpers.datasets import DiesOnce, identity

COUNT = 64
METHODS = ["fork", "spawn", "forkserver"]
WORKERS = {"fork": 2, "spawn": 1, "forkserver": 2}  # each that is spawned imports torch
LOADERS = {"ours": DataLoader, "torch": torch.utils.data.DataLoader}
CORE = [("ours", "fork"), ("ours", "spawn")]
CASES = [
    pytest.param(loader, method, marks=() if (loader, method) in CORE else pytest.mark.thorough)
    for loader in LOADERS
    for method in METHODS
]


def record(number):
    return {"id": number, "name": f"n{number}", "x": torch.full((3,), float(number))}


class Records(torch.utils.data.Dataset):
    """Samples of a list, with what the worker maps and holds of it."""

    def __init__(self, records):
        self.records, self.part = records, records[::2]
        self.table = SharedDict({number: [number] for number in range(5)})

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        found = self.records[index]
        assert index % 2 or self.part[index // 2]["id"] == index
        assert [3] == self.table[3]
        return found["id"], found["x"], len(mappings()), len(descriptors()), os.getpid()


def mappings():
    """List the lists that this process maps."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if "memfd:shmloader-list" in line]


def descriptors():
    """List the descriptors of lists that this process has."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return [target for target in found if "memfd:shmloader-list" in target]


def copied_bytes():
    """Sum the pages of lists of which this process has a copy."""
    parts = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    ours = [part for part in parts if "memfd:shmloader-list" in part]
    assert ours
    return 1024 * sum(int(re.search(r"Anonymous: +(\d+)", part)[1]) for part in ours)


@pytest.mark.thorough
@pytest.mark.parametrize(("loader", "method"), CASES)
def test_workers_read_one_mapping(loader, method):
    """Each way to start workers gives the records, one mapping and one descriptor for each list."""
    dataset = Records(SharedList(map(record, range(COUNT))))
    options = {"num_workers": WORKERS[method], "multiprocessing_context": method}
    made = LOADERS[loader](dataset, batch_size=8, **options)
    batches = [[part.clone() for part in batch] for batch in made]

    assert list(range(COUNT)) == torch.cat([batch[0] for batch in batches]).tolist()
    assert all(torch.equal(batch[0].double(), batch[1][:, 2].double()) for batch in batches)
    assert {2} == {int(count) for batch in batches for count in batch[2]}
    assert {2} == {int(count) for batch in batches for count in batch[3]}
    del made, batches, dataset


@pytest.mark.thorough
@pytest.mark.parametrize("method", METHODS)
def test_replacements_have_it(method, tmp_path):
    """A worker that replaces a dead one reads the same list, whoever has forked it."""
    dataset = DiesOnce(SharedList(map(record, range(COUNT))), tmp_path / "died")
    options = {"num_workers": WORKERS[method], "multiprocessing_context": method, "restarts": 4}
    with DataLoader(dataset, 4, **options) as loader, pytest.warns(shmloader.RestartWarning):
        assert list(range(COUNT)) == [number for batch in loader for number in batch["id"].tolist()]


def send_on(records, line):
    """Start a process with the list from one that got it itself."""
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=tell, args=(records[3:], records, line))
    child.start()
    child.join()
    assert 0 == child.exitcode


def tell(part, records, line):
    line.put((part[0]["id"], len(records), len(mappings()), len(descriptors())))


@pytest.mark.thorough
@pytest.mark.parametrize("method", METHODS)
def test_a_process_hands_it_on(method):
    """A process that got a list starts others with it: a rank with workers of its own."""
    context = multiprocessing.get_context(method)
    line = multiprocessing.get_context("spawn").SimpleQueue()
    with SharedList(map(record, range(COUNT))) as records:
        child = context.Process(target=send_on, args=(records, line))
        child.start()
        child.join()

        assert 0 == child.exitcode
        assert (3, COUNT, 1, 1) == line.get()
    line.close()


def test_reading_copies_no_page():
    """A forked child that reads has no page of its own; one that writes has one, for itself."""
    rows = ({"id": number, "s": "text" * 20, "x": torch.zeros(3)} for number in range(20_000))
    with SharedList(rows) as records:

        def read_and_write():
            total, before = sum(found["id"] for found in records), copied_bytes()
            records[5]["x"].add_(1)
            return total, before, copied_bytes(), records[5]["x"].tolist()

        read = sum(range(20_000)), 0, mmap.PAGESIZE, [1.0, 1.0, 1.0]
        assert repr(read) == Child(read_and_write).end()
        assert [0.0, 0.0, 0.0] == records[5]["x"].tolist()


@pytest.mark.thorough
@pytest.mark.parametrize("method", METHODS)
def test_a_file_in_workers(method, tmp_path):
    """A list from a file comes to workers too, also if the file has another name by then."""
    with SharedList.pack(map(record, range(COUNT)), tmp_path / "a") as records:
        os.rename(tmp_path / "a", tmp_path / "b")
        options = {"num_workers": WORKERS[method], "multiprocessing_context": method}
        with DataLoader(records, 8, collate_fn=identity, **options) as loader:
            assert [f"n{n}" for n in range(COUNT)] == [
                each["name"] for batch in loader for each in batch
            ]

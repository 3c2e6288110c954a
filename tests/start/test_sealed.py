"""What workers are started with is pickled once, and each worker has its own of what is open."""

import os

import pytest
import torch
from torch.utils.data import Dataset

from shmloader import DataLoader
from shmloader.processes import sealed
from tests.helpers.warned import recorded

WAYS = [
    {"multiprocessing_context": "forkserver"},
    {"multiprocessing_context": "spawn"},
    {"multiprocessing_context": "forkserver", "preload": ()},
]


class Counted(Dataset):
    """Counts how often it is pickled in the trainer."""

    pickled = 0

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return index

    def __getstate__(self):
        Counted.pickled += 1
        return {}


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_dataset_is_pickled_once(way):
    """Two workers, and a replacement, share one pickle."""
    Counted.pickled = 0
    with recorded(), DataLoader(Counted(), num_workers=2, restarts=3, **way) as loader:
        iterator = iter(loader)
        next(iterator)
        iterator._workers[1].kill()
        assert 11 == len(list(iterator))
        assert 1 == loader.stats().restarts

    assert 1 == Counted.pickled


class Opened(Dataset):
    """Opens a file when it is unpickled, whose place tells readers that share it."""

    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 24

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.file = open(self.path, "rb", buffering=0)  # noqa: SIM115

    def __getitem__(self, index):
        self.file.seek(index)
        return self.file.read(1)[0]


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_files_that_a_dataset_opens_are_each_workers_own(tmp_path, way):
    """No worker moves another one's place."""
    path = tmp_path / "file"
    path.write_bytes(bytes(range(24)))
    with DataLoader(Opened(path), num_workers=2, **way) as loader:
        assert list(range(24)) == [int(batch) for batch in loader]


class Shared(Dataset):
    """Many tensors in shared memory, which trainer and workers write to."""

    def __init__(self, count):
        self.tensors = [torch.zeros(2).share_memory_() for _ in range(count)]

    def __len__(self):
        return 4

    def __getitem__(self, index):
        self.tensors[index][0] = 1 + index
        return torch.stack([each[1] for each in self.tensors]).sum()


def use_shared(count):
    """Check that workers see what the trainer writes, and the trainer what they write."""
    dataset = Shared(count)
    for each in dataset.tensors:
        each[1] = 0.5
    with DataLoader(dataset, multiprocessing_context="forkserver", num_workers=2) as loader:
        assert [count / 2] * 4 == [float(batch) for batch in loader]
    assert [1.0, 2.0, 3.0, 4.0] == [float(each[0]) for each in dataset.tensors[:4]]


@pytest.mark.thorough
@pytest.mark.parametrize("count", [4, 300])
def test_shared_tensors(count):
    """Tensors in shared memory stay shared, also more than a fork server has descriptors for."""
    use_shared(count)


@pytest.mark.thorough
@pytest.mark.parametrize("count", [4, 300])
def test_tensors_whose_readers_are_counted(run_program, count):
    """Each worker has a pickle of its own of tensors that torch shares by names, which all go."""
    script = f"""
import torch
from tests.start.test_sealed import use_shared
if __name__ == "__main__":
    torch.multiprocessing.set_sharing_strategy("file_system")
    use_shared({count})
    print("right")
"""
    assert (0, ["right"], "") == run_program(script)


def test_sealed_memory_cannot_be_changed():
    """The pickle is as it was, whatever a worker does."""
    content = sealed.Sealed.make({"a": 1})
    number = content._file.fileno()
    with pytest.raises(PermissionError):
        os.pwrite(number, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(number, 0)

    assert {"a": 1} == content.open()

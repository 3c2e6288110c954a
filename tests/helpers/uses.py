"""Short uses of the package, each of which compares all that it gets; programs run them by name."""

import json
import os
import signal
import tempfile
import warnings

import torch
from torch.utils.data import Dataset

from shmloader import DataLoader, RestartWarning, SharedList, cached, downloaded

COUNT, BATCH, NUMBERS = 48, 4, 3000


class Samples(Dataset):
    """Samples that are full of their index; the process that fetches `dies_at` first is killed."""

    def __init__(self, dies_at=None):
        self.dies_at = dies_at
        self.folder = tempfile.mkdtemp(dir=".")

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        if index == self.dies_at and not os.path.exists(f"{self.folder}/died"):
            os.mkdir(f"{self.folder}/died")
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.full((NUMBERS,), float(index))


def right(number):
    """Make the batch with that number."""
    indices = torch.arange(number * BATCH, (number + 1) * BATCH, dtype=torch.float32)
    return indices[:, None].expand(BATCH, NUMBERS)


def compare(batches, first=0):
    """Compare every batch with the right one, and their number."""
    numbers = range(first, COUNT // BATCH)
    for number, batch in zip(numbers, batches, strict=True):
        assert torch.equal(right(number), batch), number


def open_loader(dataset=None, **options):
    return DataLoader(dataset or Samples(), BATCH, num_workers=2, **options)


def plain():
    """Two epochs, each with workers of its own."""
    with open_loader() as loader:
        compare(loader)
        compare(loader)


def held():
    """All batches of an epoch are kept."""
    with open_loader() as loader:
        compare(list(loader))


def healing():
    """A worker is killed, and another takes its place."""
    with open_loader(Samples(dies_at=20), restarts=2) as loader:
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            compare(loader)
        assert [RestartWarning] == [each.category for each in given], [*map(str, given)]


def death():
    """A worker is killed, and nothing heals it."""
    try:
        with open_loader(Samples(dies_at=20)) as loader:
            compare(loader)
    except RuntimeError as error:
        assert "exited unexpectedly" in str(error) or "killed by signal" in str(error), error
    else:
        raise AssertionError("no error")


def forked():
    """A forked child holds batches while the trainer goes on with few slots."""
    with open_loader(slots=4) as loader:
        iterator = iter(loader)
        kept = [next(iterator), next(iterator)]
        told, tell = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.read(told, 1)
                code = 0 if all(map(torch.equal, map(right, range(2)), kept)) else 2
            finally:
                os._exit(code)
        del kept
        compare(iterator, first=2)
        os.write(tell, b"x")
        assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def cache():
    """Samples are kept in shared memory."""
    dataset = cached(Samples(), 50_000_000)
    with open_loader(dataset) as loader:
        compare(loader)
        compare(loader)
        assert (COUNT, COUNT) == (dataset.cache_stats().hits, dataset.cache_stats().misses)
    dataset.close()


def shared_list():
    """A dataset of records in a SharedList."""
    samples = Samples()
    with open_loader(SharedList([samples[index] for index in range(COUNT)])) as loader:
        compare(loader)


def downloads():
    """Values are kept in a folder."""
    fetch = downloaded(lambda key: str(key).encode(), tempfile.mkdtemp(dir="."), 10**6)
    for _ in range(2):
        assert [b"0", b"1", b"2"] == [fetch(key) for key in range(3)]
    assert 3 == fetch.stats().hits


def nice():
    """Workers have a lower priority."""
    with open_loader(nice=10) as loader:
        compare(loader)


def play(use):
    """Run a use, and print what came of it: a JSON list, empty or with an error's kind and text."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        try:
            use()
        except Exception as error:
            print(json.dumps([type(error).__name__, str(error)]), flush=True)
        else:
            print(json.dumps([]), flush=True)

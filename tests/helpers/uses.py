"""Short uses of the package, each of which compares all that it gets; programs run them by name."""

import json
import tempfile
import warnings
from pathlib import Path

import torch

from shmloader import DataLoader, RestartWarning, SharedList, cached, downloaded
from tests.helpers.copies import WaitingChild
from tests.helpers.datasets import DiesOnce, Numbered, batch

COUNT, BATCH = 48, 4
SAMPLES = Numbered(COUNT)


def mortal():
    """The samples, of which one kills the first process that fetches it."""
    return DiesOnce(SAMPLES, Path(tempfile.mkdtemp(dir="."), "died"), 20)


def compare(batches, first=0, end=COUNT // BATCH):
    """Compare every batch with the right one, and their number."""
    for number, made in zip(range(first, end), batches, strict=True):
        assert torch.equal(batch(number, BATCH), made), number


def open_loader(dataset=SAMPLES, **options):
    return DataLoader(dataset, BATCH, num_workers=2, **options)


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
    with open_loader(mortal(), restarts=2) as loader:
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            compare(loader)
        assert [RestartWarning] == [each.category for each in given], [*map(str, given)]


def death():
    """A worker is killed, and nothing heals it."""
    try:
        with open_loader(mortal()) as loader:
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
        child = WaitingChild(compare, kept, 0, 2)
        kept.clear()
        compare(iterator, first=2)
        assert "None" == child.end()


def cache():
    """Samples are kept in shared memory."""
    dataset = cached(SAMPLES, 50_000_000)
    with open_loader(dataset) as loader:
        compare(loader)
        compare(loader)
        assert (COUNT, COUNT) == (dataset.cache_stats().hits, dataset.cache_stats().misses)
    dataset.close()


def shared_list():
    """A dataset of records in a SharedList."""
    with open_loader(SharedList([SAMPLES[index] for index in range(COUNT)])) as loader:
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

"""Ends of iterators and processes with copies under way: what is unlocked, and when."""

import gc

import pytest

from shmloader.core import locked_bytes
from shmloader.memory import page_locks
from tests.device.loaders import Images, labels_of, loader_of

SCRIPT = """
import atexit
from unittest import mock
from shmloader import DataLoader
from tests.device.driver import Gpu
from tests.device.loaders import Images

if __name__ == "__main__":
    gpu = Gpu()
    for name, value in gpu.names.items():
        mock.patch(name, value).start()
    driver = gpu.driver
    atexit.register(lambda: print(driver.registered == driver.ever_registered > 0, flush=True))
    loader = DataLoader(Images(), 2, num_workers=2, device="cuda", persistent_workers=True)
    batches = iter(loader)
    next(batches)
"""


@pytest.mark.core(first=1)
@pytest.mark.parametrize("end", ["close", "del", "break", "exhaust"])
def test_whichever_way_an_iterator_ends(gpu, end):
    """Copies that are under way read what they should, and locks go behind them."""
    loader = loader_of(Images(8))
    iterator = iter(loader)
    found = [next(iterator)]
    if end == "close":
        loader.close()
    elif end == "exhaust":
        found += list(iterator)
    del iterator
    gc.collect()
    assert gpu.driver.registered > 0
    gpu.driver.finish()
    loader.close()
    page_locks.look_at_idle()
    assert 0 == locked_bytes()
    assert [[2 * n, 2 * n + 1] for n in range(len(found))] == labels_of(found)


def test_the_end_of_the_interpreter_unlocks_nothing(run_program):
    """The process ends with copies under way; its memory goes with it, and so do its workers."""
    status, lines, errors = run_program(SCRIPT)
    assert (0, ["True"], "") == (status, lines, errors)

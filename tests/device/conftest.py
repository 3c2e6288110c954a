"""A GPU that is none, for loaders that pin batches or copy them to a device."""

import gc

import pytest
import torch

from shmloader.core import locked_bytes
from shmloader.memory import page_locks
from tests.device.driver import Gpu


@pytest.fixture(scope="session", autouse=True)
def _cuda_is_up():
    """Have CUDA open its files and threads, if there is a GPU, before a test counts its own."""
    if torch.cuda.is_available():
        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()


@pytest.fixture
def gpu(monkeypatch):
    """Have loaders pin and copy as with a GPU, whose driver is the stand-in."""
    if torch.cuda.is_available():
        pytest.skip("a process finds one driver, and there is a real one")
    gpu = Gpu()
    page_locks._said.clear()
    for name, value in gpu.names.items():
        monkeypatch.setattr(name, value)
    yield gpu
    gpu.driver.set(never=0, query_fails=0, capturing=0)
    gpu.driver.finish()
    gc.collect()
    page_locks.look_at_idle()
    assert [] == gpu.driver.faults + gpu.backend.faults
    assert 0 == locked_bytes()
    assert 0 == gpu.driver.registered


@pytest.fixture
def backend(gpu):
    """Have batches copied to the GPU, each copy done when the fence behind it is asked."""
    gpu.driver.set(prompt=1)
    return gpu.backend

"""
One hop between two processes, and what a ring of the doorbell costs with and without a wake.
"""

import ctypes
import mmap
import multiprocessing

import pytest

TRIPS = 500
RINGS = 1000
HOPS = 2 * TRIPS


@pytest.fixture
def memory(native):
    """
    The address of shared memory, zeroed, with the two lanes of native.c.
    """
    mapped = mmap.mmap(-1, native.hop_bytes())
    yield ctypes.addressof(ctypes.c_char.from_buffer(mapped))


@pytest.fixture(params=["spinning", "parked"])
def parks(request) -> bool:
    """
    How both sides wait: by looking again at once, or on their doorbells.
    """
    return request.param == "parked"


@pytest.fixture
def partner(native, memory, parks):
    """
    A process that sends back what comes, until the test is over.
    """
    process = multiprocessing.get_context("fork").Process(
        target=native.hop_echo, args=(memory, parks), daemon=True
    )
    process.start()
    yield process
    native.hop_stop(memory)
    process.join()


@pytest.mark.benchmark(group="hop")
def test_hop(benchmark, figure, native, memory, parks, partner):
    """A value goes to another process and comes back."""
    done = benchmark.pedantic(
        native.hop_trips, args=(memory, TRIPS, parks), rounds=30, warmup_rounds=3
    )

    figure("ns per hop", lambda median: median / HOPS * 1e9)
    assert TRIPS == done


@pytest.mark.benchmark(group="ring the doorbell")
@pytest.mark.parametrize("owner", ["awake", "parked"])
def test_ring_doorbell(benchmark, figure, native, memory, owner):
    """A ring makes a system call only where its owner said that it parks."""
    benchmark.pedantic(
        native.bell_ring_often, args=(memory, RINGS, owner == "parked"), rounds=50, warmup_rounds=3
    )

    figure("ns per ring", lambda median: median / RINGS * 1e9)

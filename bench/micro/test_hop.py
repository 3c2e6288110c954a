"""
One hop between two processes, what a ring of the doorbell costs, and how many need a system call.

Two processes on one core take turns by the scheduler's rules, so each is given a core
of its own if there are two.
"""

import ctypes
import mmap
import multiprocessing
import os
from contextlib import contextmanager
from statistics import median

import pytest

TRIPS = 500
RINGS = 1000
HOPS = 2 * TRIPS
VALUES = 500
FAILED = (1 << 64) - 1  # the other side is gone

# Nanoseconds before each value that is sent, and of work on each that arrives.
PACES_NS = {"sender ahead": (0, 5_000), "receiver ahead": (20_000, 0)}


@pytest.fixture
def memory(native):
    """The address of shared memory, zeroed, with the two lanes of bench/native/hops.c."""
    mapped = mmap.mmap(-1, native.hop_bytes())
    yield ctypes.addressof(ctypes.c_char.from_buffer(mapped))


@pytest.fixture(params=["spinning", "parked"])
def parks(request) -> bool:
    """How both sides wait: by looking again at once, or on their doorbells."""
    return request.param == "parked"


@contextmanager
def partner(native, memory, function: str, *arguments):
    """Run a process that answers on lane 1; each side has a core of its own."""
    cores = sorted(os.sched_getaffinity(0))

    def answer():
        os.sched_setaffinity(0, cores[-1:])
        getattr(native, function)(memory, *arguments)

    process = multiprocessing.get_context("fork").Process(target=answer, daemon=True)
    process.start()
    os.sched_setaffinity(0, cores[:1])
    try:
        yield
    finally:
        native.hop_stop(memory)
        process.join()
        os.sched_setaffinity(0, cores)


@pytest.mark.benchmark(group="hop")
def test_hop(benchmark, figure, native, memory, parks):
    """A value goes to another process and comes back."""
    with partner(native, memory, "hop_echo", parks):
        done = benchmark.pedantic(
            native.hop_trips, args=(memory, TRIPS, parks), rounds=30, warmup_rounds=3
        )

    figure("ns per hop", lambda median: median / HOPS * 1e9)
    assert TRIPS == done


@pytest.mark.benchmark(group="stream")
@pytest.mark.parametrize("ahead", PACES_NS)
def test_futex_calls(benchmark, figure, native, memory, ahead):
    """Of the wakes, one per value, only those are made whose receiver is parked."""
    gap_ns, work_ns = PACES_NS[ahead]
    answers = []

    def stream():
        answers.append(native.stream_send(memory, VALUES, gap_ns))

    with partner(native, memory, "stream_receive", work_ns):
        benchmark.pedantic(stream, rounds=20, warmup_rounds=2)

    assert FAILED not in answers
    counts = [divmod(answer, 1 << 32) for answer in answers]
    wakes, parks = (median(column) for column in zip(*counts, strict=True))
    figure("futex wakes per 1000 values", lambda _: wakes * 1000 / VALUES)
    figure("futex wakes saved per 1000 values", lambda _: 1000 - wakes * 1000 / VALUES)
    figure("futex parks per 1000 values", lambda _: parks * 1000 / VALUES)
    figure("ns per value", lambda median_s: median_s / VALUES * 1e9)


@pytest.mark.benchmark(group="ring the doorbell")
@pytest.mark.parametrize("owner", ["awake", "parked"])
def test_ring_doorbell(benchmark, figure, native, memory, owner):
    """A ring makes a system call only if its owner said that it parks."""
    benchmark.pedantic(
        native.bell_ring_often, args=(memory, RINGS, owner == "parked"), rounds=50, warmup_rounds=3
    )

    figure("ns per ring", lambda median: median / RINGS * 1e9)

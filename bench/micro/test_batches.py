"""A batch at both ends: wrap a leaf, gather samples, encode and decode by the number of leaves."""

import gc

import numpy
import pytest
import torch

LEAF_BYTES = 256
LEAVES = [1, 2, 8, 32, 128]
WRAPS = 100
SAMPLES = 256
POOL_BYTES = 96 << 20  # samples come from more memory than a cache holds


@pytest.fixture(autouse=True)
def no_collection():
    """Keep the garbage collector out of the timing."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.benchmark(group="wrap a leaf")
def test_wrap(benchmark, figure, ends):
    """A piece of the slot becomes a tensor through DLPack's table of C functions."""
    ends.begin()
    shape = (LEAF_BYTES // 4,)

    def wrap():
        ends.desk.empty(shape, torch.float32)

    benchmark.pedantic(wrap, rounds=100, iterations=WRAPS)

    figure("ns per leaf", lambda median: median * 1e9)
    assert shape == ends.desk.empty(shape, torch.float32).shape
    ends.discard()


@pytest.mark.benchmark(group="wrap a leaf")
def test_wrap_by_frombuffer(benchmark, figure):
    """The same through torch's public Python functions, to compare with."""
    memory = bytearray(LEAF_BYTES)
    shape = (LEAF_BYTES // 4,)

    def wrap():
        torch.frombuffer(memory, dtype=torch.float32).view(shape)

    benchmark.pedantic(wrap, rounds=100, iterations=WRAPS)

    figure("ns per leaf", lambda median: median * 1e9)
    assert shape == torch.frombuffer(memory, dtype=torch.float32).view(shape).shape


def make_leaves(ends, kind: str, count: int) -> list:
    """Make leaves of LEAF_BYTES: tensors in the slot, or ndarrays that must be copied in."""
    shape = (LEAF_BYTES // 4,)
    if kind == "arrays":
        return [numpy.full(shape, number, numpy.float32) for number in range(count)]
    tensors = [ends.desk.empty(shape, torch.float32) for _ in range(count)]
    return [tensor.fill_(number) for number, tensor in enumerate(tensors)]


@pytest.mark.benchmark(group="encode")
@pytest.mark.parametrize("count", LEAVES)
@pytest.mark.parametrize("kind", ["tensors", "arrays"])
def test_encode(benchmark, figure, ends, kind, count):
    """A list of leaves is written: tensors lie in the slot already, arrays are copied in."""
    batch = []

    def begin():
        ends.begin()
        batch[:] = make_leaves(ends, kind, count)

    def next_batch():
        batch.clear()
        ends.discard()
        begin()

    begin()
    benchmark.pedantic(lambda: ends.write(batch), setup=next_batch, rounds=200)

    figure("us per batch", lambda median: median * 1e6)
    batch.clear()
    assert list(range(count)) == [int(leaf[-1]) for leaf in ends.deliver(ends.send())]


@pytest.mark.benchmark(group="decode")
@pytest.mark.parametrize("count", LEAVES)
@pytest.mark.parametrize("kind", ["tensors", "arrays"])
def test_decode(benchmark, figure, ends, kind, count):
    """A ready slot becomes a list of views of it."""

    def next_slot():
        ends.begin()
        ends.write(make_leaves(ends, kind, count))
        return (ends.send(),), {}

    batch = benchmark.pedantic(ends.deliver, setup=next_slot, rounds=200)

    figure("us per batch", lambda median: median * 1e6)
    assert list(range(count)) == [int(leaf[-1]) for leaf in batch]


def make_pool(sample_bytes: int) -> list[torch.Tensor]:
    """Make some batches of distinct samples, (sample_bytes,) uint8, each with memory of its own."""
    batches = min(max(POOL_BYTES // (SAMPLES * sample_bytes), 2), 16)
    count = batches * SAMPLES
    block = torch.arange(count * 8, dtype=torch.int64).view(torch.uint8)
    return [block[8 * i : 8 * i + 8].repeat(sample_bytes // 8) for i in range(count)]


@pytest.mark.benchmark(group="gather")
@pytest.mark.parametrize("sample_bytes", [64, 1 << 10, 16 << 10, 256 << 10])
@pytest.mark.parametrize("way", ["slot", "torch.stack"])
def test_gather(benchmark, figure, ends, way, sample_bytes):
    """Samples come to lie side by side, in the slot or in a warm buffer of torch's."""
    pool = make_pool(sample_bytes)
    warm = torch.zeros((SAMPLES, sample_bytes), dtype=torch.uint8)
    start = 0
    ends.begin()

    def next_samples():
        nonlocal start
        start = (start + SAMPLES) % len(pool)
        ends.discard()
        ends.begin()
        return (pool[start : start + SAMPLES],), {}

    def gather(samples):
        ends.desk.gather_tensors(samples)

    def stack(samples):
        torch.stack(samples, out=warm)

    benchmark.pedantic(
        gather if way == "slot" else stack, setup=next_samples, rounds=40, warmup_rounds=8
    )

    figure("GB/s", lambda median: SAMPLES * sample_bytes / median / 1e9)
    gathered = warm if way == "torch.stack" else ends.desk.gather_tensors(pool[start:][:SAMPLES])
    assert torch.equal(torch.stack(pool[start:][:SAMPLES]), gathered)
    del gathered
    ends.discard()

"""litdata: its dataset of chunks in our loader, and its own loader beside us."""

from __future__ import annotations

import pytest
import torch

from .conftest import assert_left_alone
from .needs import needs
from .training import COUNT, WORKERS, label, picture, plain

needs("litdata")

from litdata import StreamingDataLoader, StreamingDataset  # noqa: E402
from litdata.streaming.writer import BinaryWriter  # noqa: E402


@pytest.fixture(scope="module")
def chunks(tmp_path_factory):
    """Write the samples into chunks of eight."""
    folder = str(tmp_path_factory.mktemp("chunks"))
    torch.manual_seed(0)
    writer = BinaryWriter(folder, chunk_size=8)
    for index in range(COUNT):
        writer[index] = (picture(index), label(index))
    writer.done()
    writer.merge()
    return folder


class Noisy(StreamingDataset):
    """Samples of the chunks, with noise that the worker draws."""

    def __getitem__(self, index):
        pictures, labels = super().__getitem__(index)
        return pictures + torch.rand_like(pictures) * 0.1, labels


def test_dataset(compare, way, chunks):
    """A streaming dataset trains to torch's losses in each way."""
    compare(lambda way: plain(way.loader(Noisy(chunks, shuffle=True, seed=3), **WORKERS)), way)


def test_own_loader_is_left_alone(chunks):
    """Its loader makes iterators of its own, which resume."""
    opened = lambda: StreamingDataLoader(StreamingDataset(chunks), **WORKERS)  # noqa: E731
    assert_left_alone(opened, COUNT // 8)

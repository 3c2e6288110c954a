"""litdata: its dataset of chunks in our loader, and its own loader beside us."""

from __future__ import annotations

import pytest
import torch

import shmloader

from .conftest import tried
from .needs import needs
from .training import COUNT, WORKERS, label, picture, plain
from .ways import INSTALL, TORCH

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


def resumed(chunks):
    """Take five batches of a StreamingDataLoader, and go on with another from its state."""
    loader = StreamingDataLoader(StreamingDataset(chunks), **WORKERS)
    first = iter(loader)
    begun = [next(first)[1].tolist() for _ in range(5)]
    state = loader.state_dict()
    first.close()
    again = StreamingDataLoader(StreamingDataset(chunks), **WORKERS)
    again.load_state_dict(state)
    return [*begun, *(labels.tolist() for _, labels in again)]


def test_own_loader_is_as_before(chunks):
    """Its loader makes iterators of its own, which resume; install() leaves it alone."""
    theirs, ours = (tried(way, lambda _: resumed(chunks)) for way in (TORCH, INSTALL))

    assert COUNT / 8 == len(theirs.losses)
    assert theirs.losses == ours.losses
    assert 0 == ours.made.ours


def test_own_loader_is_refused(chunks):
    """wrap() would lose its place when it resumes; the error names the class and the way out."""
    with pytest.raises(TypeError, match="makes in _get_iterator"):
        shmloader.wrap(StreamingDataLoader(StreamingDataset(chunks), **WORKERS))

"""webdataset: shards as an iterable dataset, and its own WebLoader."""

from __future__ import annotations

import pytest
import torch

import shmloader

from .needs import needs
from .training import BATCH, COUNT, WORKERS, label, picture, plain
from .ways import INSTALL, WRAP

needs("webdataset")

import webdataset  # noqa: E402

SHARDS = 6


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Write the samples into tar files, and give their names as webdataset spells them."""
    folder = tmp_path_factory.mktemp("shards")
    torch.manual_seed(0)
    for shard in range(SHARDS):
        with webdataset.TarWriter(str(folder / f"{shard}.tar")) as tar:
            for index in range(shard, COUNT, SHARDS):
                name = f"{index:03}"
                tar.write({"__key__": name, "pth": picture(index), "cls": label(index)})
    return str(folder / f"{{0..{SHARDS - 1}}}.tar")


def noisy(sample):
    """Add noise that the worker draws."""
    pictures, labels = sample
    return pictures + torch.rand_like(pictures) * 0.1, labels


def dataset(shards):
    """Read samples from the shards, each worker from its own, in an order that it draws."""
    read = webdataset.WebDataset(shards, shardshuffle=SHARDS, seed=1)
    return read.shuffle(16, seed=1).decode().to_tuple("pth", "cls").map(noisy)


def test_dataset(compare, way, shards):
    """Samples of shards train to torch's losses in each way."""
    compare(lambda way: plain(way.loader(dataset(shards), **WORKERS)), way)


def test_batches_of_the_pipeline(compare, way, shards):
    """Batches that the workers' pipeline makes itself, by `batched`, go through slots too."""
    compare(
        lambda way: plain(
            way.loader(dataset(shards).batched(BATCH), batch_size=None, num_workers=2)
        ),
        way,
    )


def web_loader(way, shards, **options):
    """Make a WebLoader; what it begins with is a loader of torch's."""
    loader = webdataset.WebLoader(dataset(shards), **WORKERS)
    if way == WRAP:
        loader.pipeline[0] = shmloader.wrap(loader.pipeline[0], **options)
    return loader


@pytest.mark.parametrize("way", [WRAP, INSTALL], ids=str)
def test_web_loader(compare, way, shards):
    """Batches that a WebLoader passes on train to torch's losses."""
    compare(lambda way: plain(web_loader(way, shards)), way)


def shuffled(way, shards, **options):
    """Mix the samples of a WebLoader's batches: 20 samples wait, of as many batches at most."""
    return web_loader(way, shards, **options).unbatched().shuffle(20, seed=1).batched(BATCH)


def test_shuffle_behind_the_loader(compare, shards):
    """Samples that wait hold the slots of their batches, so as many slots more serve them."""
    slots = 4 + 20 + BATCH  # on their way, in the shuffle, in the batch that is being made

    def train(way):
        loader = shuffled(way, shards, slots=slots)
        losses = plain(loader)
        if way == WRAP:
            assert 0 == loader.pipeline[0].stats().spilled
        return losses

    compare(train, WRAP)

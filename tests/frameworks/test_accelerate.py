"""Accelerate trains as with torch's loader, and what of ours it does not keep is known."""

from __future__ import annotations

import itertools

import pytest
import torch.utils.data

import shmloader

from .needs import needs
from .ranks import LONGEST_S, assert_same_on_all_ranks
from .training import WORKERS, Pictures, Stream
from .ways import BY_SERVER, IMPORT, INSTALL, TORCH, WRAP, spied

accelerate = needs("accelerate")

from .accelerate_loops import (  # noqa: E402
    ACCUMULATED,
    TORCHRUN,
    fresh_state,  # noqa: F401
    prepared,
    train,
)


def accelerator(**options):
    configuration = accelerate.DataLoaderConfiguration(**options)
    return accelerate.Accelerator(
        cpu=True, gradient_accumulation_steps=ACCUMULATED, dataloader_config=configuration
    )


@pytest.mark.parametrize("way", [WRAP, INSTALL, BY_SERVER], ids=str)
@pytest.mark.parametrize("dataset", [Pictures, Stream], ids=["map", "iterable"])
def test_prepare(compare, way, dataset):
    """A prepared loader has torch's losses, and updates at the same steps."""

    def run(way):
        boss = accelerator()
        options = {} if dataset is Stream else {"shuffle": True}
        return train(boss, prepared(boss, way, way.loader(dataset(), **options, **WORKERS)))

    compare(run, way)


@pytest.mark.parametrize("way", [WRAP, INSTALL, BY_SERVER], ids=str)
def test_dispatcher(compare, way):
    """The loader of the dispatcher, which one process reads for all, is ours."""

    def run(way):
        boss = accelerator(dispatch_batches=True)
        return train(boss, prepared(boss, way, way.loader(Pictures(), shuffle=True, **WORKERS)))

    compare(run, way)


@pytest.mark.parametrize("way", [INSTALL, BY_SERVER], ids=str)
@pytest.mark.parametrize("dataset", [Pictures, Stream], ids=["map", "iterable"])
def test_skip_first_batches(compare, way, dataset):
    """The loader that skip_first_batches() builds goes on at the same batch, and is ours."""

    def run(way):
        boss = accelerator()
        loader = prepared(boss, way, way.loader(dataset(), **WORKERS))
        return train(boss, boss.skip_first_batches(loader, 5))

    compare(run, way)


def test_prepare_builds_torchs_of_ours():
    """Without install() prepare() drops our class: the losses are right, the loader is torch's."""
    boss = accelerator()
    loader = boss.prepare(IMPORT.loader(Pictures(), **WORKERS))
    with spied() as made:
        batches = len(list(loader))

    assert 12 == batches
    assert (0, 1) == (made.ours, made.torchs)
    assert type(loader.base_dataloader) is torch.utils.data.DataLoader


def test_wrap_refuses_what_prepare_made():
    """wrap() would take Accelerate's own iteration from the loader; the error shows the way."""
    boss = accelerator()
    loader = boss.prepare(TORCH.loader(Pictures(), **WORKERS))

    with pytest.raises(TypeError, match=r"loader\.base_dataloader = shmloader\.wrap\(") as caught:
        shmloader.wrap(loader)
    assert "DataLoaderShard is only a proxy of one" in str(caught.value)


@pytest.mark.timeout(LONGEST_S)
@pytest.mark.parametrize("arguments", [[], ["dispatch"]], ids=["sharded", "dispatched"])
def test_two_processes(tmp_path, arguments):
    """Two ranks have torch's losses, each sample once, and all metrics gathered once."""
    by_way = assert_same_on_all_ranks("accelerate_ranks", tmp_path, *arguments, launcher=TORCHRUN)

    for ranks in by_way.values():
        seen = [rank["seen"] for rank in ranks]
        assert list(range(16)) == sorted(itertools.chain(*seen))
        assert [8, 8] == [len(each) for each in seen]
        assert [list(range(10))] * 2 == [sorted(rank["gathered"]) for rank in ranks]

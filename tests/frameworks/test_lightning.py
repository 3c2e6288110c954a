"""Lightning's Trainer and Fabric train as with torch's loader, with iterators of ours alone."""

from __future__ import annotations

import pytest

import shmloader

from .needs import needs
from .ranks import LONGEST_S, assert_same_on_all_ranks
from .training import WORKERS, Net, Pictures, Stream
from .ways import BY_SERVER, WAYS

lightning = needs("lightning", "lightning.pytorch.utilities")

from lightning.pytorch.utilities import CombinedLoader  # noqa: E402

from .lightning_modules import Module, quiet_trainer  # noqa: E402


@pytest.fixture(params=(*WAYS, BY_SERVER), ids=str)
def way(request):
    """Each way to train with our loader, and workers that are not forked from the trainer."""
    return request.param


def loaders(way, **options):
    """Make a loader for training and one for validation."""
    options = {**WORKERS, **options}
    return way.loader(Pictures(), shuffle=True, **options), way.loader(Pictures(40), **options)


def fit(way, trainer, **options):
    """Train and validate. Returns every loss."""
    module = Module()
    trainer.fit(module, *loaders(way, **options))
    return module.losses


@pytest.mark.parametrize("persistent", [False, True], ids=["each epoch's", "persistent"])
def test_fit_and_validate(compare, way, persistent):
    """fit() with validation has torch's losses, with workers of any life."""
    compare(lambda way: fit(way, quiet_trainer(), persistent_workers=persistent), way)


def test_iterable(compare):
    """An iterable dataset without a length, stopped by a limit in the midst of an epoch."""

    def train(way):
        module = Module()
        quiet_trainer(limit_train_batches=5).fit(module, way.loader(Stream(), **WORKERS))
        return module.losses

    compare(train)


def test_overfit_batches(compare, way):
    """Lightning builds the loader anew with another sampler: its class and options stay ours."""
    compare(lambda way: fit(way, quiet_trainer(overfit_batches=3)), way)


def test_predict(compare, way):
    """predict() builds the loader anew with a batch sampler that tells indices."""

    def train(way):
        module = Module()
        loader = way.loader(Pictures(40), **WORKERS)
        quiet_trainer().predict(module, loader, return_predictions=False)
        return module.losses

    compare(train, way)


@pytest.mark.parametrize("mode", ["max_size_cycle", "min_size", "max_size", "sequential"])
def test_combined_loaders(compare, mode):
    """Loaders of different length side by side, or one after the other."""

    def train(way):
        module, trainer = Module(), quiet_trainer(max_epochs=1)
        pair = [way.loader(Pictures(count), shuffle=True, **WORKERS) for count in (48, 24)]
        run = trainer.validate if mode == "sequential" else trainer.fit  # fit() refuses that one
        run(module, CombinedLoader(pair, mode))
        return module.losses

    compare(train)


@pytest.mark.parametrize("persistent", [False, True], ids=["each epoch's", "persistent"])
def test_reload(compare, persistent):
    """A loader that the module makes anew for each epoch; Lightning drops the old iterator."""

    class Reloading(Module):
        def train_dataloader(self):
            return self.way.loader(
                Pictures(), shuffle=True, persistent_workers=persistent, **WORKERS
            )

    def train(way):
        module = Reloading()
        module.way = way
        quiet_trainer(reload_dataloaders_every_n_epochs=1).fit(module)
        return module.losses

    compare(train)


def test_resume(compare, way, tmp_path):
    """A run stopped within an epoch goes on from its checkpoint as with torch's loader."""

    def train(way):
        first, second = Module(), Module()
        stopped = quiet_trainer(max_steps=17, enable_checkpointing=True, default_root_dir=tmp_path)
        stopped.fit(first, *loaders(way))
        path = tmp_path / f"{way}.ckpt"
        stopped.save_checkpoint(path)
        quiet_trainer(max_epochs=3).fit(second, *loaders(way), ckpt_path=path)
        return [*first.losses, *second.losses]

    compare(train, way)


def test_fabric(compare, way):
    """A loop over Fabric's loaders has torch's losses."""

    def train(way):
        fabric = lightning.Fabric(accelerator="cpu", devices=1)
        net = Net()
        loader, held_out = fabric.setup_dataloaders(*loaders(way))
        losses = []
        for _ in range(2):
            losses += [step(fabric, net, batch) for batch in loader]
            losses += [net.loss(batch).item() for batch in held_out]
        return losses

    def step(fabric, net, batch):
        loss = net.loss(batch)
        fabric.backward(loss)
        return loss.item()

    compare(train, way)


@pytest.mark.parametrize("user_class", [False, True], ids=["ours", "a subclass"])
def test_options_survive_a_rebuild(user_class):
    """Lightning's rebuilt loader has our options, so it is not only of our class."""
    kind = type("Kind", (shmloader.DataLoader,), {}) if user_class else shmloader.DataLoader
    loader = kind(Pictures(), slots=9, restarts=2, shuffle=True, **WORKERS)
    trainer = quiet_trainer(overfit_batches=2)
    trainer.fit(Module(), loader)
    (used,) = trainer.fit_loop._combined_loader.flattened

    assert used is not loader
    assert (kind, 9, 2) == (type(used), used.slots, used.restarts)
    assert 4 == used.stats().batches


def test_a_loader_that_finds_its_workers_does_so_in_a_rebuild():
    """Lightning's rebuilt loader begins with few workers, and not with the most."""
    loader = shmloader.DataLoader(Pictures(), shuffle=True, num_workers="auto", max_workers=7)
    trainer = quiet_trainer(overfit_batches=2)
    trainer.fit(Module(), loader)
    (used,) = trainer.fit_loop._combined_loader.flattened

    assert used is not loader
    assert (7, 7, "batch") == (used.num_workers, used.max_workers, used.seed_by)
    assert 2 == used._service.pool.learnt_workers


@pytest.mark.timeout(LONGEST_S)
@pytest.mark.parametrize("program", ["trainer", "fabric"])
def test_two_processes(tmp_path, program):
    """With ddp each of two ranks, the relaunched one too, has torch's losses in each way."""
    assert_same_on_all_ranks("lightning_ranks", tmp_path, program, "ddp")


@pytest.mark.timeout(LONGEST_S)
def test_two_spawned_processes(tmp_path):
    """With ddp_spawn loaders and all are pickled, and each rank has torch's losses."""
    assert_same_on_all_ranks("lightning_ranks", tmp_path, "trainer", "ddp_spawn")

"""Checkpoints of other projects carry a loader's place, and a run goes on from there exactly."""

from __future__ import annotations

import os
import signal
import unittest.mock

import pytest
import torch

import shmloader

from .needs import needs
from .ranks import LONGEST_S, outcomes, run
from .training import WORKERS, Pictures, Stopping, Stream, seed, signal_job

lightning = needs("lightning")

from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint  # noqa: E402
from lightning.pytorch.plugins.environments import SLURMEnvironment  # noqa: E402

from .lightning_modules import Module, quiet_trainer  # noqa: E402

EPOCHS, STEPS, EVERY, DIES_AT = 3, 12, 5, 17  # steps of an epoch; saved every so many steps
OPTIONS = [
    {"seed_by": "batch"},
    {"resumable": True},
    {"seed_by": "batch", "persistent_workers": True},
    {"resumable": True, "persistent_workers": True},
]


class Died(Exception):
    """The end of a run, in the middle of an epoch."""


class Dying(Module):
    """Ends like a process that is killed: nothing is saved meanwhile."""

    def training_step(self, batch, batch_index):
        if len(self.losses) == DIES_AT:
            raise Died
        return super().training_step(batch, batch_index)


def imported(options, dataset=None):
    """Make a loader of ours."""
    order, dataset = torch.Generator().manual_seed(3), dataset or Pictures()
    return shmloader.DataLoader(dataset, shuffle=True, generator=order, **WORKERS, **options)


def wrapped(options):
    """Make one from torch's."""
    ours = dict(options)
    torchs = {"persistent_workers": ours.pop("persistent_workers", False)}
    order = torch.Generator().manual_seed(3)
    loader = torch.utils.data.DataLoader(
        Pictures(), shuffle=True, generator=order, **WORKERS, **torchs
    )
    return shmloader.wrap(loader, **ours)


def fit(module, loader, **checkpoint):
    """Train for some epochs. Returns the module."""
    quiet_trainer(max_epochs=EPOCHS).fit(module, loader, **checkpoint)
    return module


def fit_and_die(folder, loader, every=EVERY):
    """Train until it dies. Returns the losses up to the last checkpoint, and its path."""
    module = Dying()
    saving = ModelCheckpoint(folder, every_n_train_steps=every, save_top_k=-1)
    trainer = quiet_trainer(max_epochs=EPOCHS, enable_checkpointing=True, callbacks=[saving])
    with pytest.raises(Died):
        trainer.fit(module, loader)
    steps = DIES_AT // every * every
    return module.losses[:steps], folder / f"epoch={(steps - 1) // STEPS}-step={steps}.ckpt"


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("make", [imported, wrapped])
def test_lightning_goes_on_within_an_epoch(tmp_path, make, options):
    """A run that died has the losses and the weights of one that did not."""
    seed()
    whole = fit(Module(), make(options))
    seed()
    losses, path = fit_and_die(tmp_path, make(options))
    torch.manual_seed(77)  # a new process, whose generators are elsewhere
    rest = fit(Module(), make(options), ckpt_path=path, weights_only=False)

    assert EPOCHS * STEPS - len(losses) == len(rest.losses)
    assert whole.losses == losses + rest.losses
    assert all(map(torch.equal, whole.parameters(), rest.parameters()))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_lightning_goes_on_from_the_last_step_of_an_epoch(tmp_path, options):
    """It counts batches, never asks for the end, and wants the next epoch then: none is lost."""
    seed()
    whole = fit(Module(), imported(options))
    seed()
    losses, path = fit_and_die(tmp_path, imported(options), every=STEPS)
    torch.manual_seed(77)
    rest = fit(Module(), imported(options), ckpt_path=path, weights_only=False)

    assert (STEPS, 2 * STEPS) == (len(losses), len(rest.losses))
    assert whole.losses == losses + rest.losses


def fit_until_told(folder, module, loader):
    """Train until a SIGTERM comes. Returns the path of what Lightning's callback has saved."""
    saving = OnExceptionCheckpoint(folder)
    trainer = quiet_trainer(max_epochs=EPOCHS, enable_checkpointing=True, callbacks=[saving])
    with pytest.raises(SystemExit):
        trainer.fit(module, loader)
    return folder / "on_exception.ckpt"


@pytest.mark.parametrize("options", [*OPTIONS, {"seed_by": "batch", "restarts": 1}], ids=str)
def test_lightning_saves_at_sigterm(tmp_path, options):
    """Its callback for errors saves after the step that was waited for; the next run goes on."""
    seed()
    whole = fit(Module(), imported(options))
    seed()
    module = Module()
    path = fit_until_told(tmp_path, module, imported(options, Stopping()))
    torch.manual_seed(77)
    rest = fit(Module(), imported(options), ckpt_path=path, weights_only=False)

    assert 0 < len(module.losses) < STEPS
    assert whole.losses == module.losses + rest.losses
    assert all(map(torch.equal, whole.parameters(), rest.parameters()))


class StoppedAtTheEnd(Module):
    """The training is told to stop after the last step of its first epoch."""

    def on_train_batch_end(self, outputs, batch, batch_index):
        if len(self.losses) == STEPS:
            os.kill(os.getpid(), signal.SIGTERM)


def test_lightning_reads_no_position_of_an_epoch_that_is_over(tmp_path):
    """It counts that epoch as complete, and restores no loader then: the program may."""
    options = {"seed_by": "batch"}
    seed()
    whole = fit(Module(), imported(options))
    seed()
    module = StoppedAtTheEnd()
    path = fit_until_told(tmp_path, module, imported(options))
    loops = torch.load(path, weights_only=False)["loops"]
    torch.manual_seed(77)
    loader = imported(options)
    by_hand = loader.load_state_dict
    with unittest.mock.patch.object(loader, "load_state_dict") as by_lightning:
        by_hand(loops["fit_loop"]["state_dict"]["combined_loader"][0])
        rest = fit(Module(), loader, ckpt_path=path, weights_only=False)

    assert not by_lightning.called
    assert whole.losses == module.losses + rest.losses


class Told(Module):
    """All processes of the job are told to stop between two steps."""

    def on_train_batch_end(self, outputs, batch, batch_index):
        if len(self.losses) == DIES_AT:
            signal_job(signal.SIGUSR1)


def test_lightning_saves_and_requeues_under_slurm(tmp_path, monkeypatch):
    """It saves at SIGUSR1, goes on until it is killed, and the next run finds the checkpoint."""
    (tmp_path / "scontrol").write_text('#!/bin/sh\necho "$@" > "$0.called"\n')
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    names = {"JOB_ID": 7, "NTASKS": 1, "LOCALID": 0, "NODEID": 0, "PROCID": 0, "JOB_NAME": "job"}
    for name, value in names.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))

    def fit_there(module):
        options = {"plugins": [SLURMEnvironment()], "default_root_dir": tmp_path}
        trainer = quiet_trainer(max_epochs=EPOCHS, enable_checkpointing=False, **options)
        trainer.fit(module, imported({"seed_by": "batch"}), weights_only=False)
        return module.losses

    seed()
    whole = fit_there(Told())
    torch.manual_seed(77)
    rest = fit_there(Module())

    assert "requeue 7\n" == (tmp_path / "scontrol.called").read_text()
    assert whole[DIES_AT:] == rest


class Sized(Stream):
    """An iterable dataset that says how long it is."""

    def __len__(self):
        return self.count


@pytest.mark.parametrize(("kind", "lost"), [(Sized, 0), (Stream, 1)])
def test_lightning_goes_on_in_an_iterable_dataset(tmp_path, kind, lost):
    """With a length it is exact; without one Lightning saves a place that is a batch too far."""

    def make():
        return shmloader.DataLoader(kind(), seed_by="batch", **WORKERS)

    seed()
    whole = fit(Module(), make())
    seed()
    losses, path = fit_and_die(tmp_path, make())
    rest = fit(Module(), make(), ckpt_path=path, weights_only=False)

    assert EPOCHS * STEPS - lost == len(losses + rest.losses)
    assert (lost == 0) == (whole.losses[: 2 * STEPS] == (losses + rest.losses)[: 2 * STEPS])


@pytest.mark.timeout(3 * LONGEST_S)
def test_lightning_goes_on_within_an_epoch_on_two_ranks(tmp_path):
    """Both ranks go on from the state of rank 0, and rank 1 is told so."""
    for part in ("whole", "dying", "resumed"):
        run("lightning_resumed_ranks", tmp_path, part)
    by_part = outcomes(tmp_path)

    assert {"whole", "resumed"} == set(by_part)
    for rank, (whole, rest) in enumerate(zip(by_part["whole"], by_part["resumed"], strict=True)):
        assert 18 == len(whole["losses"])
        assert whole["losses"][8:] == rest["losses"]
        assert whole["weights"] == rest["weights"]
        assert [0, rank] == [whole["told"], rest["told"]]
        assert 0 < rest["ours"]
        assert 0 == rest["torchs"]
    assert by_part["whole"][0]["losses"] != by_part["whole"][1]["losses"]


def test_lightning_takes_a_checkpoint_without_our_place(tmp_path):
    """What docs/resume.md says to remove lets torch's loader have the checkpoint again."""
    seed()
    losses, path = fit_and_die(tmp_path, imported({"seed_by": "batch"}))
    torchs = torch.utils.data.DataLoader(Pictures(), shuffle=True, **WORKERS)
    with pytest.raises(RuntimeError):
        fit(Module(), torchs, ckpt_path=path, weights_only=False)

    checkpoint = torch.load(path, weights_only=False)
    checkpoint["loops"]["fit_loop"]["state_dict"].pop("combined_loader")
    torch.save(checkpoint, path)
    rest = fit(Module(), torchs, ckpt_path=path, weights_only=False)
    assert len(rest.losses) >= EPOCHS * STEPS - len(losses)

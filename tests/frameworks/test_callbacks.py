"""The callbacks in examples/ log what the loader that counts has done."""

from __future__ import annotations

import pytest

from .needs import needs
from .shims import example
from .training import WORKERS, Pictures


def test_lightning(way):
    """Each epoch's own batches are logged, even of a loader that Lightning built anew."""
    needs("lightning")
    from .lightning_modules import Module, quiet_trainer

    logged = []

    class Reading(example("callbacks/lightning_stats").LoaderStats):
        def on_train_epoch_end(self, trainer, module):
            super().on_train_epoch_end(trainer, module)
            names = ("loader/batches", "loader/spilled")
            logged.append([float(trainer.callback_metrics[name]) for name in names])

    with way.active():
        loader = way.loader(Pictures(), shuffle=True, **WORKERS)
        quiet_trainer(overfit_batches=3, callbacks=[Reading()]).fit(Module(), loader)

    assert [[3.0, 0.0], [3.0, 0.0]] == logged


def test_hugging_face(tmp_path):
    """Each epoch's own batches stand in the Trainer's log."""
    pytest.importorskip("transformers")
    from .test_hf_trainer import trainer
    from .ways import INSTALL

    boss = trainer(tmp_path, INSTALL)
    boss.add_callback(example("callbacks/hf_stats").LoaderStats())
    with INSTALL.active():
        boss.train()
    logged = [entry for entry in boss.state.log_history if "loader/batches" in entry]

    assert [(1.0, 12, 0), (2.0, 12, 0)] == [
        (entry["epoch"], entry["loader/batches"], entry["loader/spilled"]) for entry in logged
    ]

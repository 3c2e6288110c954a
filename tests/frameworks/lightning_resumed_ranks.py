"""
Two ranks under Lightning that die within an epoch: `... FOLDER (whole | dying | resumed)`.

Each rank writes the losses and the weights of its run, and how often it was warned that the state
is another rank's.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

from tests.frameworks.needs import stand_in_for_operators

stand_in_for_operators()

import lightning  # noqa: E402
import torch  # noqa: E402
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402

import shmloader  # noqa: E402
from tests.frameworks.lightning_modules import QUIET, Module  # noqa: E402
from tests.frameworks.ranks import RANKS, write  # noqa: E402
from tests.frameworks.training import SEED, WORKERS, Pictures  # noqa: E402
from tests.frameworks.ways import spied  # noqa: E402

EPOCHS, EVERY, DIES_AT = 3, 4, 9  # an epoch of a rank has six steps; saved every so many


class Dying(Module):
    """Ends both ranks at once, like a job that is killed: nothing is saved meanwhile."""

    def training_step(self, batch, batch_index):
        if len(self.losses) == DIES_AT:
            self.trainer.strategy.barrier()
            os._exit(0)
        return super().training_step(batch, batch_index)


def loader() -> shmloader.DataLoader:
    """Shuffled by Lightning's sampler, whose seed is that of seed_everything()."""
    seeds = torch.Generator().manual_seed(3)
    return shmloader.DataLoader(
        Pictures(), shuffle=True, generator=seeds, seed_by="batch", **WORKERS
    )


def main(folder: str, part: str) -> None:
    lightning.seed_everything(SEED)
    module = Dying() if part == "dying" else Module()
    saving = ModelCheckpoint(folder, "{step}", every_n_train_steps=EVERY, save_top_k=-1)
    trainer = lightning.Trainer(
        **QUIET, devices=RANKS, strategy="ddp", max_epochs=EPOCHS, callbacks=[saving]
    )
    steps = DIES_AT // EVERY * EVERY
    path = Path(folder, f"step={steps}.ckpt") if part == "resumed" else None
    if path is not None:
        torch.manual_seed(77)  # a new process, whose generators are elsewhere
    with spied() as made, warnings.catch_warnings(record=True, action="always") as caught:
        trainer.fit(module, loader(), ckpt_path=path, weights_only=False)
    count = sum("this state was saved by rank 0 of 2" in str(each.message) for each in caught)
    weights = [each.tolist() for each in module.parameters()]
    write(folder, part, trainer.global_rank, module.losses, made, weights=weights, told=count)


if __name__ == "__main__":
    main(*sys.argv[1:])

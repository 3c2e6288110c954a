"""
Two ranks under Lightning: `lightning_ranks.py FOLDER (trainer | fabric) STRATEGY`.

Lightning's own processes run this script again (ddp), or unpickle the module and its loaders
(ddp_spawn); either way each rank writes what it trained to the folder.
"""

from __future__ import annotations

import contextlib
import sys

from tests.frameworks.needs import stand_in_for_operators

stand_in_for_operators()

import lightning  # noqa: E402

from tests.frameworks.lightning_modules import QUIET, Module  # noqa: E402
from tests.frameworks.ranks import RANKS, write  # noqa: E402
from tests.frameworks.training import WORKERS, Net, Pictures, seed  # noqa: E402
from tests.frameworks.ways import IMPORT, INSTALL, TORCH, WRAP, Way, spied  # noqa: E402


class Noting(Module):
    """Writes its losses at the end of fit(), in the process that trained."""

    def __init__(self, folder: str, name: str) -> None:
        super().__init__()
        self.folder = folder
        self.name = name

    def on_fit_start(self) -> None:
        self._exits = contextlib.ExitStack()
        self._made = self._exits.enter_context(spied())

    def on_fit_end(self) -> None:
        self._exits.close()
        write(self.folder, self.name, self.global_rank, self.losses, self._made)


def train(folder: str, strategy: str, way: Way) -> None:
    # A spawned rank would spawn its workers, each of which imports Lightning: a minute each epoch.
    options = {**WORKERS, "multiprocessing_context": "fork"}
    loaders = [
        way.loader(Pictures(count), shuffle=shuffle, **options)
        for count, shuffle in ((96, True), (40, False))
    ]
    trainer = lightning.Trainer(
        **QUIET, devices=RANKS, strategy=strategy, max_epochs=2, enable_checkpointing=False
    )
    trainer.fit(Noting(folder, str(way)), *loaders)


def train_by_fabric(folder: str, fabric: lightning.Fabric, way: Way) -> None:
    net = Net()
    losses = []
    loader = fabric.setup_dataloaders(way.loader(Pictures(), shuffle=True, **WORKERS))
    with spied() as made:
        for epoch in range(2):
            loader.sampler.set_epoch(epoch)
            losses += [net.loss(batch).item() for batch in loader]
    write(folder, way, fabric.global_rank, losses, made)


def main(folder: str, program: str, strategy: str) -> None:
    # install() reaches no child that is spawned, which the launcher does; and pickles of wrapped
    # loaders are all that others have to bear, and more.
    ways = (TORCH, WRAP) if strategy == "ddp_spawn" else (TORCH, IMPORT, WRAP, INSTALL)
    if program == "fabric":
        fabric = lightning.Fabric(accelerator="cpu", devices=RANKS, strategy=strategy)
        fabric.launch()
    for way in ways:
        seed()
        with way.active():
            if program == "fabric":
                train_by_fabric(folder, fabric, way)
            else:
                train(folder, strategy, way)


if __name__ == "__main__":
    main(*sys.argv[1:])

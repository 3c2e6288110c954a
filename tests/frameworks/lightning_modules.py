"""What the tests with Lightning train, also in processes that it starts."""

from __future__ import annotations

from typing import Any

import lightning
import torch

from .training import Net

QUIET = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


class Module(lightning.LightningModule):
    """Notes the loss of each step, with the step's kind."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.losses: list[tuple[str, float]] = []

    def note(self, step: str, batch: Any) -> torch.Tensor:
        """Add up the losses of all batches of a step: combined loaders give several at once."""
        batches = batch if isinstance(batch, list) and isinstance(batch[0], list) else [batch]
        loss = torch.stack([self.net.loss(each) for each in batches if each is not None]).sum()
        self.losses.append((step, loss.item()))
        return loss

    def training_step(self, batch: Any, batch_index: int) -> torch.Tensor:
        return self.note("train", batch)

    def validation_step(self, batch: Any, batch_index: int, dataloader_idx: int = 0) -> None:
        self.note("validate", batch)

    def predict_step(self, batch: Any, batch_index: int) -> None:
        self.note("predict", batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def quiet_trainer(**options: Any) -> lightning.Trainer:
    """Make a Trainer for the CPU that prints and keeps nothing."""
    defaults = {"devices": 1, "max_epochs": 2, "enable_checkpointing": False}
    return lightning.Trainer(**QUIET, **{**defaults, **options})

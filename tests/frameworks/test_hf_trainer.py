"""The Hugging Face Trainer trains, evaluates and resumes as with torch's loader."""

from __future__ import annotations

import pytest
import torch

import shmloader

from .needs import needs
from .training import BATCH, Net, Pictures, Stream
from .ways import INSTALL, WRAP, spied

transformers = needs("transformers", "accelerate")


class Model(torch.nn.Module):
    """Takes and returns what the Trainer wants, and notes its losses."""

    def __init__(self):
        super().__init__()
        self.net = Net()
        self.losses = []

    def forward(self, pictures, labels):
        loss = self.net.loss((pictures, labels))
        self.losses.append((self.training, loss.item()))
        return {"loss": loss, "logits": self.net(pictures).detach()}


class Wrapping(transformers.Trainer):
    """
    The smallest seam without install().

    The Trainer's loader is Accelerate's; the one inside is wrapped.
    """

    def get_train_dataloader(self):
        return self.served(super().get_train_dataloader())

    def get_eval_dataloader(self, eval_dataset=None):
        return self.served(super().get_eval_dataloader(eval_dataset))

    def served(self, loader):
        loader.base_dataloader = shmloader.wrap(loader.base_dataloader)
        return loader


def named(samples):
    pictures, labels = torch.utils.data.default_collate(samples)
    return {"pictures": pictures, "labels": labels}


def trainer(folder, way, dataset=None, **options):
    defaults = {
        "output_dir": str(folder),
        "use_cpu": True,
        "dataloader_num_workers": 2,
        "per_device_train_batch_size": BATCH,
        "per_device_eval_batch_size": BATCH,
        "num_train_epochs": 2,
        "report_to": [],
        "disable_tqdm": True,
        "logging_strategy": "no",
        "save_strategy": "no",
        "remove_unused_columns": False,
    }
    kind = Wrapping if way is WRAP else transformers.Trainer
    return kind(
        Model(),
        transformers.TrainingArguments(**{**defaults, **options}),
        data_collator=named,
        train_dataset=dataset or Pictures(),
        eval_dataset=Pictures(40),
    )


@pytest.mark.parametrize("way", [WRAP, INSTALL], ids=str)
def test_train_and_evaluate(compare, way, tmp_path):
    """Training, and an evaluation after each epoch, have torch's losses."""

    def train(way):
        boss = trainer(tmp_path, way, eval_strategy="epoch")
        boss.train()
        return boss.model.losses

    compare(train, way)


def test_iterable(compare, tmp_path):
    """An iterable dataset has torch's losses."""

    def train(way):
        boss = trainer(tmp_path, way, Stream(), max_steps=16)
        boss.train()
        return boss.model.losses

    compare(train)


def resumed(folder, way):
    """Train to the middle of an epoch, then on from its checkpoint, in another Trainer."""
    folder.mkdir(exist_ok=True)
    first = trainer(folder, way, save_strategy="steps", save_steps=17, max_steps=17)
    first.train()
    second = trainer(folder, way)
    second.train(resume_from_checkpoint=str(folder / "checkpoint-17"))
    return [*first.model.losses, *second.model.losses]


def test_resume(compare, tmp_path):
    """A run goes on from a checkpoint within an epoch, and the resumed epoch is ours too."""
    compare(lambda way: resumed(tmp_path / str(way), way))


def test_resumed_epoch_of_a_wrapped_loader_is_torchs(tmp_path):
    """Without install() Accelerate builds a loader of torch's for the resumed epoch."""
    with spied() as made:
        losses = resumed(tmp_path, WRAP)

    assert 24 == len(losses)
    assert made.ours > 0
    assert 1 == made.torchs

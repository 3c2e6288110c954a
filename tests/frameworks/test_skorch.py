"""skorch: its documented options for a loader's class."""

from __future__ import annotations

import pytest
import torch

import shmloader

from .needs import needs
from .training import BATCH, Net, Pictures
from .ways import IMPORT, INSTALL, TorchLoader

needs("skorch")

from skorch import NeuralNet  # noqa: E402
from skorch.dataset import ValidSplit  # noqa: E402


def train(kind):
    """Fit for two epochs. Returns its losses in training and validation."""
    net = NeuralNet(
        Net,
        criterion=torch.nn.CrossEntropyLoss,
        lr=0.1,
        max_epochs=2,
        batch_size=BATCH,
        iterator_train=kind,
        iterator_train__shuffle=True,
        iterator_train__num_workers=2,
        iterator_valid=kind,
        iterator_valid__num_workers=2,
        train_split=ValidSplit(4),
        verbose=0,
    )
    net.fit(Pictures(), y=None)
    return net.history[:, ("train_loss", "valid_loss")]


@pytest.mark.parametrize("way", [IMPORT, INSTALL], ids=str)
def test_iterator_options(compare, way):
    """`iterator_train=shmloader.DataLoader` trains to torch's losses; install() needs no option."""
    compare(lambda way: train(shmloader.DataLoader if way == IMPORT else TorchLoader), way)

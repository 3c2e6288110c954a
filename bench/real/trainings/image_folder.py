"""The pictures of `jpegs` by torchvision: its ImageFolder and the transforms of its version 2."""

from pathlib import Path

import torch
from torch.utils.data import DataLoader

from bench.real.training import WORKERS, Training, draws
from bench.real.trainings.jpegs import BATCH, PIXELS, cnn, loss


def make(folder: Path, steps: int) -> Training:
    """Make the training, whose samples are torchvision's own subclass of tensors."""
    from tests.frameworks.needs import stand_in_for_operators  # beside the package

    stand_in_for_operators()
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    transform = v2.Compose(
        [
            v2.RandomResizedCrop(PIXELS),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    dataset = ImageFolder(str(folder), transform)
    loader = DataLoader(dataset, BATCH, sampler=draws(dataset, steps * BATCH), **WORKERS)
    return Training(loader, cnn(), loss)

"""JPEGs, decoded, cropped and flipped at random by Pillow, and a small convolutional net."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy
import torch
from PIL import Image
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from bench.real.training import WORKERS, Training, draws

BATCH = 32
PIXELS = 224

_MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
_DEVIATION = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


class Jpegs(Dataset):
    """
    JPEG files in folders by label.

    A sample is image (3, 224, 224) float32 and label, an int.
    """

    def __init__(self, folder: Path):
        self._paths = sorted(folder.glob("*/*.jpg"))
        self._labels = sorted({path.parent.name for path in self._paths})

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path = self._paths[index]
        with Image.open(path) as picture:
            crop = crop_at_random(picture.convert("RGB"))
        if random.random() < 0.5:
            crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return normalized(crop), self._labels.index(path.parent.name)


def crop_at_random(picture: Image.Image) -> Image.Image:
    """Cut out 8 to 100 % of the area, not far from a square, and make it 224 pixels wide."""
    area = picture.width * picture.height * random.uniform(0.08, 1)
    ratio = random.uniform(3 / 4, 4 / 3)
    width = min(picture.width, (area * ratio) ** 0.5)
    height = min(picture.height, (area / ratio) ** 0.5)
    left = random.uniform(0, picture.width - width)
    top = random.uniform(0, picture.height - height)
    box = (left, top, left + width, top + height)
    return picture.resize((PIXELS, PIXELS), Image.Resampling.BILINEAR, box)


def normalized(picture: Image.Image) -> torch.Tensor:
    """Make a tensor (3, H, W) float32 with values around 0, as pretrained nets want them."""
    pixels = torch.from_numpy(numpy.array(picture)).permute(2, 0, 1).contiguous()
    return (pixels / 255 - _MEAN) / _DEVIATION


def make(folder: Path, steps: int) -> Training:
    """Make the training."""
    dataset = Jpegs(folder)
    loader = DataLoader(dataset, BATCH, sampler=draws(dataset, steps * BATCH), **WORKERS)
    return Training(loader, cnn(), loss)


def cnn() -> torch.nn.Module:
    """Make a net for pictures of 224 pixels."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 7, stride=4, padding=3),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, stride=2, padding=1),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(32, 8),
    )


def loss(net: torch.nn.Module, batch: Sequence[torch.Tensor]) -> torch.Tensor:
    """Compute the loss of a batch of pictures and labels."""
    pictures, labels = batch
    return functional.cross_entropy(net(pictures), labels)

"""Random patches of cached three-dimensional scans by MONAI, and a small net that segments them."""

from pathlib import Path
from typing import Any

import torch
from monai.data import CacheDataset, DataLoader
from monai.transforms import (
    Compose,
    EnsureTyped,
    RandCropByPosNegLabeld,
    RandFlipd,
    RandGaussianNoised,
    RandScaleIntensityd,
    ScaleIntensityd,
)
from torch.nn import functional

from bench.real.training import WORKERS, Training, draws

_BATCH = 4
_SCANS = 24
_SIDE = 96  # voxels of a scan
_PATCH = (48, 48, 48)
_KEYS = ("image", "label")


def make(_: Path, steps: int) -> Training:
    """Make the training: scans are cached, patches and what changes them are drawn by workers."""
    transforms = Compose(
        [
            EnsureTyped(_KEYS),
            ScaleIntensityd("image"),
            RandCropByPosNegLabeld(_KEYS, "label", _PATCH, num_samples=2),
            RandFlipd(_KEYS, prob=0.5, spatial_axis=0),
            RandScaleIntensityd("image", factors=0.1, prob=0.5),
            RandGaussianNoised("image", prob=0.5, std=0.05),
        ]
    )
    scans = [_scan() for _ in range(_SCANS)]
    dataset = CacheDataset(scans, transforms, progress=False)
    sampler = draws(dataset, steps * _BATCH)
    loader = DataLoader(dataset, batch_size=_BATCH, sampler=sampler, **WORKERS)
    return Training(loader, _net(), _loss)


def _scan() -> dict[str, torch.Tensor]:
    """Make a bright ball in noise, and the mask of the ball: (1, 96, 96, 96) float32 each."""
    axis = torch.arange(_SIDE)
    places = torch.stack(torch.meshgrid(axis, axis, axis, indexing="ij"))
    centre = torch.randint(_SIDE // 4, 3 * _SIDE // 4, (3, 1, 1, 1))
    radius = torch.randint(_SIDE // 8, _SIDE // 4, ()).item()
    ball = ((places - centre) ** 2).sum(0, keepdim=True) < radius**2
    return {"image": ball + 0.5 * torch.rand(ball.shape), "label": ball.float()}


def _net() -> torch.nn.Module:
    """Halve the resolution, look around, and go back to a score for each voxel."""
    return torch.nn.Sequential(
        torch.nn.Conv3d(1, 8, 3, stride=2, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv3d(8, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.ConvTranspose3d(8, 1, 2, stride=2),
    )


def _loss(net: torch.nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    # Plain tensors, as their history is of no use in a net and slows each of its layers.
    scores = net(batch["image"].as_tensor())
    return functional.binary_cross_entropy_with_logits(scores, batch["label"].as_tensor())

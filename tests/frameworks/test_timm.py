"""timm's create_loader, with its prefetcher and without, and its loader of many epochs."""

from __future__ import annotations

import numpy
import pytest
import torch

import shmloader

from .needs import needs
from .training import BATCH, COUNT, label, plain
from .ways import INSTALL, WRAP

needs("timm", "PIL")

from PIL import Image  # noqa: E402
from timm.data import create_loader  # noqa: E402


class Photographs(torch.utils.data.Dataset):
    """Pictures of PIL's; timm sets the transform, whose random crops and flips workers draw."""

    transform = None

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        pixels = numpy.random.default_rng(index).integers(0, 255, (24, 24, 3), dtype=numpy.uint8)
        return self.transform(Image.fromarray(pixels)), label(index)


def loader_of(way, **options):
    """Call create_loader, and wrap the loader inside of the prefetcher if that is the way."""
    loader = create_loader(
        Photographs(),
        input_size=(3, 16, 16),
        batch_size=BATCH,
        is_training=True,
        re_prob=0.5,
        num_workers=2,
        pin_memory=False,
        device=torch.device("cpu"),
        **options,
    )
    if way != WRAP:
        return loader
    if not options["use_prefetcher"]:
        return shmloader.wrap(loader)
    loader.loader = shmloader.wrap(loader.loader)
    return loader


@pytest.mark.parametrize("way", [WRAP, INSTALL], ids=str)
@pytest.mark.parametrize("epochs", ["own epochs", "multi-epochs"])
@pytest.mark.parametrize("prefetcher", [True, False], ids=["prefetcher", "plain"])
def test_create_loader(compare, way, prefetcher, epochs):
    """The losses are torch's, with crops and flips in workers and erasing in the trainer."""
    options = {
        "use_prefetcher": prefetcher,
        "use_multi_epochs_loader": epochs == "multi-epochs",
    }

    compare(lambda way: plain(loader_of(way, **options)), way)

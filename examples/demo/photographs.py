"""
Real photographs as a dataset: JPEG tiles, decoded and augmented at random when they are fetched.

The photographs come inside the wheels of scikit-image and matplotlib, so nothing is downloaded.
"""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from importlib.resources import files
from typing import NamedTuple

import numpy
import torch
from PIL import Image
from torch.utils.data import Dataset

from shmloader.cli.command import CommandError

# Package, path in it. The place in this tuple is the label.
PHOTOGRAPHS = (
    ("skimage", "data/astronaut.png"),
    ("skimage", "data/chelsea.png"),
    ("skimage", "data/coffee.png"),
    ("skimage", "data/hubble_deep_field.jpg"),
    ("skimage", "data/motorcycle_left.png"),
    ("skimage", "data/retina.jpg"),
    ("skimage", "data/rocket.jpg"),
    ("matplotlib", "mpl-data/sample_data/grace_hopper.jpg"),
)
TILE_PIXELS = 160
CROP_PIXELS = 112
SAMPLE_BYTES = 3 * CROP_PIXELS**2 * 4
JPEG_QUALITY = 90

Sample = tuple[torch.Tensor, int]  # image (3, 112, 112) float32, label


class Tile(NamedTuple):
    """One square of a photograph."""

    jpeg: bytes
    label: int


class PhotographTiles(Dataset):  # type: ignore[type-arg]
    """
    Tiles cut from real photographs; the label says which photograph.

    A sample is image (3, 112, 112) float32 in 0..1 and label, an int. Each fetch decodes the tile
    with Pillow and draws from the random number generators of torch, of Python and of numpy, so
    two loaders deliver the same samples only if they seed all three alike in every worker.
    """

    def __init__(self, tiles_per_photograph: int) -> None:
        """
        Cut the photographs into tiles and encode these as JPEG.

        Raises:
            CommandError: A package lacks its photograph.
        """
        self.tiles = [
            Tile(encode_jpeg(square), label)
            for label in range(len(PHOTOGRAPHS))
            for square in cut_squares(open_photograph(label), tiles_per_photograph)
        ]

    def __len__(self) -> int:
        return len(self.tiles)

    def __getitem__(self, index: int) -> Sample:
        tile = self.tiles[index]
        with Image.open(io.BytesIO(tile.jpeg)) as picture:
            square = flip_at_random(crop_at_random(picture.convert("RGB")))
        return jitter_at_random(square), tile.label


def open_photograph(label: int) -> Image.Image:
    """Read the photograph of a label out of the package that ships it."""
    package, path = PHOTOGRAPHS[label]
    photograph = files(package).joinpath(path)
    if not photograph.is_file():
        raise CommandError(f"this release of {package} has no {path}; the demo needs it")
    with photograph.open("rb") as stream:
        return Image.open(stream).convert("RGB")


def cut_squares(photograph: Image.Image, count: int) -> Iterator[Image.Image]:
    """Cut squares at regular steps over the whole photograph; neighbours overlap."""
    columns = max(1, round((count * photograph.width / photograph.height) ** 0.5))
    rows = -(-count // columns)
    for place in range(count):
        row, column = divmod(place, columns)
        left = spread(column, columns, photograph.width - TILE_PIXELS)
        top = spread(row, rows, photograph.height - TILE_PIXELS)
        yield photograph.crop((left, top, left + TILE_PIXELS, top + TILE_PIXELS))


def spread(place: int, places: int, span_pixels: int) -> int:
    """Offset of a place when all places are spread evenly over a span."""
    return place * span_pixels // max(1, places - 1)


def encode_jpeg(picture: Image.Image) -> bytes:
    """The picture as the bytes of a JPEG file."""
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=JPEG_QUALITY)
    return stream.getvalue()


def crop_at_random(picture: Image.Image) -> Image.Image:
    """A square of `CROP_PIXELS` from a random place; draws from torch."""
    left, top = torch.randint(TILE_PIXELS - CROP_PIXELS + 1, (2,)).tolist()
    return picture.crop((left, top, left + CROP_PIXELS, top + CROP_PIXELS))


def flip_at_random(picture: Image.Image) -> Image.Image:
    """The picture or its mirror image; draws from Python's `random`."""
    if random.random() < 0.5:
        return picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return picture


def jitter_at_random(picture: Image.Image) -> torch.Tensor:
    """
    Make a tensor; change each colour's contrast and brightness; draws from numpy.

    Returns:
        Image (3, H, W) float32 in 0..1.
    """
    contrast = numpy.random.uniform(0.7, 1.3, size=(3, 1, 1)).astype(numpy.float32)
    brightness = numpy.random.uniform(-0.1, 0.1, size=(3, 1, 1)).astype(numpy.float32)
    planes = numpy.asarray(picture).transpose(2, 0, 1) * (contrast / numpy.float32(255))
    return torch.from_numpy(numpy.clip(planes + brightness, 0, 1, dtype=numpy.float32))

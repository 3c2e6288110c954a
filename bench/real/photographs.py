"""The pictures of two trainings: parts of photographs that other packages ship, as JPEG files."""

from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from examples.demo.photographs import PHOTOGRAPHS, encode_jpeg, open_photograph

WIDTH, HEIGHT = 400, 300
_OF_EACH = 48


def write(folder: Path) -> None:
    """Write JPEGs of 400 × 300 pixels into a folder for each photograph, which is their label."""
    for label in range(len(PHOTOGRAPHS)):
        own = folder / f"{label}"
        own.mkdir()
        for place, part in enumerate(_parts(open_photograph(label))):
            (own / f"{place:03}.jpg").write_bytes(encode_jpeg(part))


def _parts(photograph: Image.Image) -> Iterator[Image.Image]:
    """Cut parts along a diagonal, from one corner to the other; neighbours overlap."""
    for place in range(_OF_EACH):
        left = place * (photograph.width - WIDTH) // (_OF_EACH - 1)
        top = place * (photograph.height - HEIGHT) // (_OF_EACH - 1)
        yield photograph.crop((left, top, left + WIDTH, top + HEIGHT))

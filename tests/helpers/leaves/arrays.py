"""Arrays of numpy and awkward, and images of Pillow."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy
import PIL.Image

from tests.helpers.leaves.leaf import COUNT, Leaf, module


class Shot(numpy.ndarray):
    """A subclass of a user, with an attribute."""

    exposure = 1.0

    def __array_finalize__(self, template: Any) -> None:
        self.exposure = getattr(template, "exposure", 2.0)


def ramp(code: str = "f4") -> numpy.ndarray:
    return numpy.arange(COUNT).astype(code)


def rows() -> numpy.ndarray:
    made = numpy.zeros(COUNT // 4, [("n", "i4"), ("x", "f8"), ("s", "S4")])
    made["n"], made["s"] = numpy.arange(COUNT // 4), b"text"
    return made


def masked(hard: bool = False) -> Any:
    made = numpy.ma.masked_array(ramp(), ramp("i4") % 3 == 0, hard_mask=hard)
    made.fill_value = -5.0
    return made


def mapped() -> Any:
    with tempfile.NamedTemporaryFile() as file:
        made = numpy.memmap(file.name, numpy.float32, "w+", shape=(COUNT,))
    made[:] = ramp()
    return made


def image(mode: str, width: int = 1024, height: int = 1024) -> Any:
    made = PIL.Image.frombytes(
        "RGB", (width, height), bytes(range(256)) * (width * height * 3 // 256)
    )
    made = made.convert(mode)
    made.info["dpi"] = (72, 72)
    return made


def photograph() -> Any:
    with tempfile.NamedTemporaryFile(suffix=".jpg") as file:
        image("RGB").save(file.name)
        made = PIL.Image.open(file.name)
        made.load()
    return made


def jagged() -> Any:
    awkward = module("awkward")
    return awkward.unflatten(ramp(), numpy.full(COUNT // 16, 16))


TEXTS = numpy.arange(20_000).astype("T")
OBJECTS = "Python objects are built anew, as with torch"
LEAVES = [
    Leaf("ndarray, float32", ramp),
    Leaf("ndarray, Fortran order", lambda: numpy.asfortranarray(ramp().reshape(1024, 1024))),
    Leaf("ndarray, structured", rows),
    Leaf("ndarray, datetime64", lambda: ramp("datetime64[s]")),
    Leaf("ndarray, text", lambda: numpy.arange(COUNT // 16).astype("U16")),
    Leaf("ndarray, StringDType", lambda: TEXTS.copy(), in_slot=False, why=OBJECTS),
    Leaf("ndarray, object", lambda: ramp()[:20_000].astype(object), in_slot=False, why=OBJECTS),
    Leaf("recarray", lambda: rows().view(numpy.recarray)),
    Leaf("matrix", lambda: ramp().reshape(1024, 1024).view(numpy.matrix)),
    Leaf("masked array", masked),
    Leaf("memory-mapped array", mapped),
    Leaf("subclass of ndarray", lambda: ramp().view(Shot)),
    Leaf("PIL image, RGB", lambda: image("RGB")),
    Leaf("PIL image, L", lambda: image("L", 2048, 2048)),
    Leaf("PIL image, palette", lambda: image("P", 2048, 2048)),
    Leaf("PIL image, I;16", lambda: image("I;16")),
    Leaf("PIL image, F", lambda: image("F")),
    Leaf("PIL image from a JPEG", photograph),
    Leaf("64 PIL images of 224 x 224", lambda: [image("RGB", 224, 224) for _ in range(64)]),
    Leaf(
        "PIL image of 20 MB", lambda: image("RGB", 2560, 2048), in_slot=False,
        why="Pillow makes it in several blocks",
    ),
    Leaf("awkward array", jagged, ("awkward",)),
]  # fmt: skip

"""How each leaf of the table is written in place, by its library's own ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import PIL.Image
import PIL.ImageDraw
import torch

from tests.helpers.leaves import LEAVES


def clear(*tensors: Any) -> None:
    with torch.no_grad():
        for tensor in tensors:
            tensor.zero_()


def assign(at: Any, value: Any) -> Callable[[Any], None]:
    return lambda leaf: leaf.__setitem__(at, value)


def assign_row(value: Any) -> Callable[[Any], None]:
    return lambda leaf: leaf.iloc.__setitem__((3, *[0] * (leaf.ndim - 1)), value)


def count_up(rows: Any) -> None:
    rows["n"] += 1
    rows.sort(order="x")


def work_on(array: Any) -> None:
    array *= 3
    array[..., 5] = array[..., 7]
    array.reshape(-1)[::3] = 1


def mask(array: Any) -> None:
    array[5] = numpy.ma.masked
    array[7:9] = 4
    array.mask[1] = True


def draw(image: Any) -> None:
    bands = len(image.getbands())
    colours = [tuple([each] * bands) if bands > 1 else each for each in (1, 2, 3, 4)]
    PIL.ImageDraw.floodfill(image, (0, 0), colours[0], thresh=20)
    image.load()[20, 3] = colours[1]
    image.putpixel((30, 4), colours[2])
    PIL.ImageDraw.Draw(image).line((50, 50, 90, 70), colours[3])
    image.paste(image.crop((0, 0, 8, 8)), (100, 100))


def add_to_frame(frame: Any) -> None:
    frame["id"] += 1
    frame.loc[3, "price"] = -1.0
    frame.iloc[5, 0] = 7


def keep_first(texts: list[Any]) -> None:
    texts[0] = "other"
    del texts[1:]


# By the beginning of a row's name; the longest counts. None: it cannot be written in place.
_WAYS: dict[str, Callable[[Any], Any] | None] = {
    "tensor": clear,
    "1,000 small tensors": lambda leaf: clear(*leaf),
    "20 small sparse COO": lambda leaf: clear(*(each._values() for each in leaf)),
    "Parameter": clear,
    "subclass of Tensor": clear,
    "torchvision": clear,
    "MONAI": clear,
    "TensorDict": clear,
    "tensorclass": lambda leaf: clear(leaf.image),
    "nested": lambda leaf: clear(leaf.values()),
    "sparse": lambda leaf: clear(leaf._values() if leaf.layout is torch.sparse_coo else leaf),
    "quantised": assign(3, 9.0),
    "PackedSequence": lambda leaf: clear(leaf.data),
    "meta": None,
    "storage": lambda leaf: leaf.fill_(3),
    "ndarray": work_on,
    "ndarray, structured": count_up,
    "ndarray, datetime64": assign(5, numpy.datetime64("2020-01-01")),
    "ndarray, text": assign(5, "other"),
    "ndarray, StringDType": assign(5, "other"),
    "ndarray, object": assign(5, None),
    "recarray": lambda leaf: leaf.x.fill(4.0),
    "matrix": work_on,
    "masked": mask,
    "memory-mapped": work_on,
    "subclass of ndarray": work_on,
    "PIL": draw,
    "64 PIL": lambda leaf: [draw(each) for each in leaf],
    "awkward": None,
    "pandas, numbers": add_to_frame,
    "pandas, dates": assign_row(-1),
    "pandas, strings": assign_row("other"),
    "pandas, objects": assign_row("other"),
    "pandas, categories": assign_row("a"),
    "pandas, nullable": assign_row(None),
    "Arrow": None,
    "dict of 50 tensors": lambda leaf: clear(*leaf.values()),
    "namedtuple": lambda leaf: clear(leaf.left),
    "dataclass": lambda leaf: clear(leaf.pixels),
    "attrs": lambda leaf: clear(leaf.pixels),
    "pydantic": lambda leaf: clear(leaf.pixels),
    "object of a class": lambda leaf: clear(leaf.pixels),
    "dict that": lambda leaf: clear(leaf["pixels"]),
    "20,000 texts": keep_first,
    "100,000 numbers": keep_first,
    "bytes": None,
    "bytearray": assign(5, 9),
}
WRITES = {name: _WAYS[max(filter(name.startswith, _WAYS), key=len)] for name in LEAVES}

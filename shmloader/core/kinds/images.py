"""
Images of Pillow: their pixels as an array, and the image in the trainer over the array's memory.

An image in several blocks (from 16 MB on, as Pillow makes them), of one bit, and any of a Pillow
before 13 travels as packed bytes, and is unpacked in the trainer. Those Pillows crash when the
memory of an image over a buffer is asked for.
"""

import importlib
from typing import Any

import numpy

from shmloader.core._core import array_of_arrow
from shmloader.core.kinds import Reducer, keeps

_module: Any = importlib.import_module("PIL.Image")
_Image: Any = _module.Image
_lends = int(importlib.import_module("PIL").__version__.partition(".")[0]) >= 13
_PALETTES = ("L", "LA", "P", "PA")  # modes of images that may get one


def reducer_of(kind: type) -> Reducer | None:
    """Find how images of a class are taken apart: not if it has a reduction of its own."""
    is_image = issubclass(kind, _Image) and keeps(kind, _Image, ("__reduce__", "__reduce_ex__"))
    return _reduce if is_image else None


def _reduce(image: Any) -> Any:
    if 0 in image.size:
        return None
    pixels = _pixels_of(image)
    # What is Pillow's own pickle, or that of a subclass, without pixels.
    bare = _Image.__new__(type(image))
    bare.__dict__.update(image.__dict__)
    bare._size, bare.im = (0, 0), _module.core.new(image.mode, (0, 0))
    state = bare.__getstate__()
    if type(state) is not list or len(state) < 5 or state[2] != (0, 0):
        return None
    state[3] = None
    palette = image.getpalette() if image.mode in _PALETTES else None
    return _build, (type(image), state, image.size, palette, pixels)


def _pixels_of(image: Any) -> Any:
    """Returns the pixels as they lie in memory, or packed, as bytes of two dimensions."""
    try:
        if _lends and image.mode != "1":
            return array_of_arrow(image)
    except (TypeError, ValueError):
        pass  # several blocks, or a mode that Arrow's interface lacks
    return numpy.frombuffer(image.tobytes(), numpy.uint8)[None]


def _build(kind: Any, state: list[Any], size: Any, palette: Any, pixels: Any) -> Any:
    image = kind.__new__(kind)
    image.__setstate__(state)
    image._size = size
    if pixels.ndim == 1:
        # As `frombuffer`, which lacks most modes; the image may be written to.
        image.im = _module.core.map_buffer(pixels, size, "raw", 0, (image.mode, 0, 1))
    else:
        image.im = _module.core.new(image.mode, size)
    if palette and image.mode in _PALETTES:
        image.putpalette(palette)
    if pixels.ndim == 2:
        image.frombytes(pixels)
    return image

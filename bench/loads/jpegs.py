"""JPEGs: decoded from memory or from a server's answers, or kept."""

import http.client
import io
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy
import torch
from PIL import Image

from bench.loads import Made

DISTINCT = 64
PICTURE_BYTES = 224 * 224 * 3
_WIDTH, _HEIGHT, _PIXELS = 500, 375, 224
_QUALITY = 85


def make_jpegs(count: int) -> list[bytes]:
    """Make JPEGs of 500 × 375 pixels and about 50 kB: smooth shapes, edges and some grain."""
    generator = numpy.random.default_rng(0)
    return [_make_jpeg(generator) for _ in range(count)]


def _make_jpeg(generator: numpy.random.Generator) -> bytes:
    coarse = generator.integers(0, 256, (6, 8, 3), numpy.uint8)
    picture = Image.fromarray(coarse).resize((_WIDTH, _HEIGHT), Image.Resampling.BICUBIC)
    pixels = numpy.asarray(picture).astype(numpy.int16)
    for _ in range(12):
        left, top = generator.integers(0, _WIDTH), generator.integers(0, _HEIGHT)
        pixels[top : top + 80, left : left + 80] += generator.integers(-60, 60, 3, numpy.int16)
    pixels += generator.normal(0, 9, pixels.shape).astype(numpy.int16)
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(numpy.uint8)).save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()


def decode(jpeg: bytes) -> torch.Tensor:
    with Image.open(io.BytesIO(jpeg)) as picture:
        small = picture.convert("RGB").resize((_PIXELS, _PIXELS), Image.Resampling.BILINEAR)
    return torch.from_numpy(numpy.array(small))


def decoded_jpegs() -> torch.Tensor:
    """Decode all distinct pictures: (64, 224, 224, 3) uint8."""
    return torch.stack([decode(jpeg) for jpeg in make_jpegs(DISTINCT)])


class Get:
    """Gets pictures from a server that waits, over a connection for each thread of each process."""

    def __init__(self, port: int, latency_ms: float):
        self._port, self._latency_ms = port, latency_ms
        self._here = threading.local()

    def __reduce__(self):
        return Get, (self._port, self._latency_ms)

    def __call__(self, number: int) -> bytes:
        line = self._line()
        line.request("GET", f"/{self._latency_ms}/{number}")
        return line.getresponse().read()

    def _line(self) -> http.client.HTTPConnection:
        # A forked child has its parent's connection, which it must not use.
        if getattr(self._here, "pid", None) != os.getpid():
            self._here.pid = os.getpid()
            self._here.line = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        return self._here.line


def pictures(count: int, get: Callable[[int], bytes] | None = None) -> Made:
    """Samples ((224, 224, 3) uint8, number), decoded at each access, of `get` or from memory."""
    if get is None:
        jpegs = make_jpegs(DISTINCT)
        return pictures(count, lambda number: jpegs[number % DISTINCT])
    return Made(count, lambda number: (decode(get(number)), number))


def kept_by_each(count: int) -> Made:
    """The same, in a dictionary that each process has for itself: what is often done."""
    decoded, kept = pictures(count), {}

    def get(number: int) -> Any:
        if number not in kept:
            kept[number] = decoded[number]
        return kept[number]

    return Made(count, get)

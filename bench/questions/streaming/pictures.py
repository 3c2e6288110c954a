"""JPEGs behind a server, as a dataset, and the net that looks at them."""

import http.client
import io
import os
import threading
import zlib
from collections.abc import Callable, Iterator

import numpy
import torch
from PIL import Image
from torch.utils.data import Dataset

from bench.real.trainings.jpegs import cnn

BATCH = 32
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


class Get:
    """
    Gets pictures from the server, over a connection for each thread of each process.

    Args:
        port: The server's.
        latency_ms: How long the server waits.
    """

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


class Pictures(Dataset):
    """Samples ((224, 224, 3) uint8, number) of pictures that a function returns as JPEGs."""

    def __init__(self, get: Callable[[int], bytes], count: int):
        self._get, self._count = get, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return decode(self._get(number)), number


class Blobs(Pictures):
    """The same without decoding: samples (bytes as (8,) uint8, number)."""

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return torch.frombuffer(bytearray(self._get(number)[:8]), dtype=torch.uint8), number


def decode(jpeg: bytes) -> torch.Tensor:
    with Image.open(io.BytesIO(jpeg)) as picture:
        small = picture.convert("RGB").resize((_PIXELS, _PIXELS), Image.Resampling.BILINEAR)
    return torch.from_numpy(numpy.array(small))


def checksum(batch: list[torch.Tensor]) -> int:
    """Sum up a batch: its pictures and their numbers, in their order."""
    pictures, numbers = batch
    return zlib.crc32(numbers.numpy(), zlib.crc32(pictures.numpy()))


def right_checksums(jpegs: list[bytes], count: int) -> list[int]:
    """Compute what a plain loop has, without a server or a loader."""
    decoded = [decode(jpeg) for jpeg in jpegs]
    return [checksum(batch) for batch in _batches(decoded, count)]


def _batches(decoded: list[torch.Tensor], count: int) -> Iterator[list[torch.Tensor]]:
    for first in range(0, count, BATCH):
        numbers = torch.arange(first, min(first + BATCH, count))
        yield [torch.stack([decoded[number % len(decoded)] for number in numbers]), numbers]


def small_net() -> torch.nn.Module:
    """Make a net that takes some milliseconds for a batch of pictures."""
    return cnn().eval()


def look_at(net: torch.nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """Run the net on a batch of pictures, for inference."""
    with torch.inference_mode():
        return net(batch[0].permute(0, 3, 1, 2) / 255).argmax(1)

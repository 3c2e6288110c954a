"""
A collate function whose batch holds every kind of leaf and container that a transport can meet.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass

import numpy as np
import torch

from .samples import Point


@dataclass
class Caption:
    """An object of the user's own: it can travel only as a pickle."""

    words: list
    picture: torch.Tensor
    array: np.ndarray


def collate_everything(samples):
    """Return a batch of strided tensors, arrays, plain values, containers and objects."""
    images = torch.stack([sample["torch"] for sample in samples])
    arrays = np.stack([sample["numpy"] for sample in samples])
    return OrderedDict(
        index=[sample["index"] for sample in samples],
        tensors=tensors_from(images),
        arrays=arrays_from(arrays),
        values=plain_values(len(samples)),
        containers=containers_from(images),
        caption=Caption(["a", "b"], images[0].clone(), arrays.copy()),
    )


def tensors_from(images):
    pictures = images[..., None].repeat(1, 1, 1, 4)
    return {
        "channels_last": pictures.contiguous(memory_format=torch.channels_last),
        "expanded": images[:, :1].expand(-1, 4, -1),
        "transposed": images.transpose(0, 2),
        "stepped": images[:, :, ::2],
        "slice": images[1:],
        "empty": images[:0],
        "scalar": torch.tensor(3.5),
        "parameter": torch.nn.Parameter(images.clone()),
        "wants_grad": images.clone().requires_grad_(),
        **{str(dtype): images.to(dtype) for dtype in OTHER_DTYPES},
    }


OTHER_DTYPES = (
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.complex64,
    torch.uint8,
    torch.int16,
    torch.bool,
)


def arrays_from(arrays):
    return (
        np.asfortranarray(arrays),
        arrays[:, ::2],
        arrays.T,
        arrays[:0],
        np.array(2.5),
        np.array(["ab", "c"]),
        np.array([1, None], dtype=object),
        np.zeros(2, dtype=[("a", "<i4"), ("b", "<f8")]),
        np.datetime64("2020-02-02"),
        np.float32(1.5),
        arrays.astype(">f4"),
    )


def plain_values(count):
    return [
        None,
        True,
        count,
        -(2**40),
        2**80,
        1.5,
        float("inf"),
        1 + 2j,
        "word \u00e4",
        b"\0\1",
        "",
    ]


def containers_from(images):
    return {
        1: Point(images, True),
        ("a", 2): (images, [images.sum(), ()], {}),
        "set": {1, 2},
        "frozen": frozenset({"x"}),
        "range": range(3),
        "queue": deque([1, images], maxlen=4),
        "size": images.shape,
        "dtype": images.dtype,
    }

"""One short value that stands for all the bits of a batch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy
import torch


def digest_batch(batch: Any) -> str:
    """
    Hash a batch: its containers, and dtype, shape and bytes of every tensor and array, in order.

    Args:
        batch: Dense CPU tensors, arrays and plain values in any nesting of mappings, lists and
            tuples.

    Returns:
        SHA-256 in hexadecimal.
    """
    digest = hashlib.sha256()
    _add(digest, batch)
    return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    """Feed one value to the hash, behind a description that keeps neighbours apart."""
    if isinstance(value, torch.Tensor):
        digest.update(f"tensor {value.dtype} {tuple(value.shape)};".encode())
        digest.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
    elif isinstance(value, numpy.ndarray):
        digest.update(f"array {value.dtype} {value.shape};".encode())
        digest.update(value.tobytes())
    elif isinstance(value, Mapping):
        digest.update(f"{type(value).__qualname__} {len(value)};".encode())
        for key, item in value.items():
            _add(digest, key)
            _add(digest, item)
    elif isinstance(value, (list, tuple)):
        digest.update(f"{type(value).__qualname__} {len(value)};".encode())
        for item in value:
            _add(digest, item)
    else:
        digest.update(f"{type(value).__qualname__} {value!r};".encode())

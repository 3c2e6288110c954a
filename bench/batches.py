"""What the benchmark asks of a batch: its leaves, how it differs, and a touch of its bytes."""

import numpy as np
import torch

TOUCHES = 32  # elements read per batch, shared out over its leaves, at least two from each


def leaves(batch) -> list:
    """List the leaves of a nested batch, depth first, in the order of its containers."""
    if isinstance(batch, dict):
        batch = batch.values()
    elif not isinstance(batch, (list, tuple)):
        return [batch]
    return [leaf for part in batch for leaf in leaves(part)]


def payload_bytes(batch) -> int:
    """Count the bytes of every array and tensor of the batch."""
    return sum(leaf.nbytes for leaf in leaves(batch) if hasattr(leaf, "nbytes"))


def difference(expected, actual) -> str | None:
    """Compare two batches whole. Returns None if they are equal, or where they differ."""
    if type(expected) is not type(actual):
        return f"{type(expected).__name__} became {type(actual).__name__}"
    if isinstance(expected, dict):
        return _difference_of_dicts(expected, actual)
    if isinstance(expected, (list, tuple)):
        return _difference_of_sequences(expected, actual)
    return None if _same_leaf(expected, actual) else f"values differ in {_outline(expected)}"


def touch(batch) -> list:
    """
    Read a strided sample of each leaf, the same elements for every loader.

    It costs the trainer time, so a long list of arrays gets the shortest way there is.
    """
    if type(batch) is list and type(batch[0]) is np.ndarray:
        return [(array.item(0), array.item(-1)) for array in batch]
    found = leaves(batch)
    return [_strided(leaf, max(2, TOUCHES // len(found))) for leaf in found]


def _strided(leaf, wanted: int):
    if type(leaf) is torch.Tensor:
        leaf = leaf.resolve_conj().resolve_neg().numpy()
    if type(leaf) is not np.ndarray:
        return leaf
    read, size = leaf.item, leaf.size
    return [read(place) for place in range(0, size, size // wanted or 1)]


def _difference_of_dicts(expected: dict, actual: dict) -> str | None:
    if list(expected) != list(actual):
        return f"keys {list(expected)} became {list(actual)}"
    return _difference_of_sequences(list(expected.values()), list(actual.values()))


def _difference_of_sequences(expected, actual) -> str | None:
    if len(expected) != len(actual):
        return f"length {len(expected)} became {len(actual)}"
    for place, (left, right) in enumerate(zip(expected, actual, strict=True)):
        found = difference(left, right)
        if found:
            return f"[{place}] {found}"
    return None


def _same_leaf(expected, actual) -> bool:
    if isinstance(expected, torch.Tensor):
        return expected.dtype == actual.dtype and torch.equal(expected, actual)
    if isinstance(expected, np.ndarray):
        return expected.dtype == actual.dtype and np.array_equal(expected, actual)
    return expected == actual


def _outline(leaf) -> str:
    shape = tuple(getattr(leaf, "shape", ()))
    return f"{type(leaf).__name__} {shape} {getattr(leaf, 'dtype', '')}".rstrip()

"""What the bench asks of a batch: its leaves, equality, a touch of its bytes."""

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


def are_equal(one, other) -> bool:
    """Compare two batches whole: containers, types, dtypes, shapes, every value."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and are_equal([*one.values()], [*other.values()])
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(are_equal, one, other))
    if isinstance(one, (torch.Tensor, np.ndarray)):
        same = torch.equal if isinstance(one, torch.Tensor) else np.array_equal
        return one.dtype == other.dtype and same(one, other)
    return one == other


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

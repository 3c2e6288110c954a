"""What the core has for a loader without workers is the same in Python."""

import pytest
import torch

from shmloader import core
from shmloader.core import plain


def test_samples_are_counted():
    """Both give each index and count how many were taken."""
    for kind in (core, plain):
        samples = kind.Samples([5, 6, 7])

        assert 3 == len(samples)
        assert [(5, 1), (6, 2), (7, 3)] == [(index, samples.position) for index in samples]


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(3),
        torch.ones(3, 4)[:, 1],
        torch.ones(3, requires_grad=True),
        torch.ones(3, dtype=torch.complex64).conj(),
        torch.ones(3).to_sparse(),
        torch.nn.Parameter(torch.ones(3)),
        torch.ones(3, device="meta"),
        3,
        None,
    ],
    ids=lambda value: type(value).__name__,
)
def test_plain_tensors_are_known(value):
    """Both take the same tensors for plain ones."""
    assert core.is_plain(value) == plain.is_plain(value)

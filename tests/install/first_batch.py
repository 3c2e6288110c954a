"""
Iterate a loader with two workers and compare each batch, as a fresh installation must be able to.

The test command of [tool.cibuildwheel]. It runs with the installed wheel and torch alone, so it
imports nothing of the tests.
"""

import torch
from torch.utils.data import TensorDataset

import shmloader


def main() -> None:
    """Print where the package was imported from, after every batch was right."""
    values = torch.arange(64 * 1024).reshape(64, 1024)
    with shmloader.DataLoader(TensorDataset(values), batch_size=16, num_workers=2) as loader:
        received = [batch.clone() for (batch,) in loader]
        delivered = loader.stats().batches
    if delivered != 4 or not torch.equal(torch.cat(received), values):
        raise SystemExit(f"{delivered} batches through shared memory, or not those of the dataset")
    print(shmloader.__file__)


if __name__ == "__main__":  # a worker started by forkserver imports this file too
    main()

"""
Tensor parallel peers that need the very same batches: one of them reads for all.

    torchrun --standalone --nproc-per-node 2 examples/tensor_parallel.py

Each rank holds a part of a layer's columns, and the losses of all are one. Rank 0 has the loader,
and the others subscribe to it. A run on one process gives the same losses.
"""

import os

import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

from shmloader import DataLoader, publish, subscribe

EPOCHS = 2
WIDTH = 8


def loader_of_rows() -> DataLoader:
    """Make the loader of one rank."""
    rows = torch.arange(64.0).reshape(16, 4) / 64
    order = torch.Generator()
    order.manual_seed(1)
    return DataLoader(TensorDataset(rows), 4, shuffle=True, generator=order, num_workers=2)


def batches_of(rank: int, ranks: int, name: str):
    """Return this rank's batches, which are those of all."""
    if rank != 0:
        return subscribe(name)
    return publish(loader_of_rows(), name, subscribers=ranks - 1, consume=True)


def losses_of(batches, columns: torch.Tensor, sum_up) -> list[float]:
    """Train a part of the columns of one layer; sum_up makes all of a part's sum."""
    columns = columns.clone()
    losses = []
    for _ in range(EPOCHS):
        for (rows,) in batches:
            outputs = rows @ columns
            losses.append(float(sum_up(outputs.square().sum())))
            columns -= 0.1 * rows.T @ (2 * outputs)
    return losses


def whole_layer() -> torch.Tensor:
    """Make the layer before training (4, WIDTH)."""
    return torch.linspace(-1, 1, 4 * WIDTH).reshape(4, WIDTH)


def train(name: str) -> list[float]:
    """Train this rank's part, by a name that no other training on this machine publishes by."""
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def sum_up(part: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(part)
        return part

    with batches_of(rank, ranks, name) as batches:
        return losses_of(batches, whole_layer().chunk(ranks, dim=1)[rank], sum_up)


def losses_alone() -> list[float]:
    """Train the whole layer in one process."""
    return losses_of(loader_of_rows(), whole_layer(), lambda loss: loss)


def main() -> None:
    dist.init_process_group("gloo")
    losses = train(f"tensor-parallel-{os.environ['MASTER_PORT']}")
    if dist.get_rank() == 0:
        same = torch.allclose(torch.tensor(losses), torch.tensor(losses_alone()))
        print(f"{len(losses)} steps, the losses are {'' if same else 'not '}those of one process")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

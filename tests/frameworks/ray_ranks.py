"""
Two ranks under Ray Train: `ray_ranks.py FOLDER (own | rays)`, by whose sampler they share.

Each rank trains in an actor, in each way, and writes what it trained to the folder.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
import ray
import ray.train
import ray.train.torch
import torch
from torch.utils.data import DistributedSampler, TensorDataset

import shmloader
from tests.frameworks.ranks import RANKS, write
from tests.frameworks.ray_sessions import start
from tests.frameworks.training import WORKERS, Pictures, plain, seed
from tests.frameworks.ways import IMPORT, INSTALL, TORCH, WRAP, Way, spied


def prepared(way: Way, dataset: Any, own: bool, **options: Any) -> Any:
    """Make a loader, and let Ray prepare it; with WRAP, wrap what Ray made of torch's."""
    sampler = DistributedSampler(dataset, shuffle=False) if own else None
    maker = TORCH if way is WRAP else way
    loader = maker.loader(dataset, sampler=sampler, persistent_workers=not own, **options)
    ours = ray.train.torch.prepare_data_loader(loader)
    # Neither built nor sharded again, or built of torch's class without some options.
    assert own == (ours._dataloader is loader)
    assert own or not ours._dataloader.persistent_workers
    with pytest.raises(TypeError, match=r"loader\._dataloader = shmloader\.wrap\("):
        shmloader.wrap(ours)
    if way is WRAP:
        ours._dataloader = shmloader.wrap(ours._dataloader)
    return ours


def train(options: dict[str, Any]) -> None:
    own = options["sampler"] == "own"
    rank = ray.train.get_context().get_world_rank()
    torch.set_num_threads(1)
    assert str(RANKS) == os.environ["LOCAL_WORLD_SIZE"]  # what divides the default of ring_bytes
    # A loader that Ray builds is of torch's class: only what comes after it makes it ours.
    for way in (TORCH, IMPORT, WRAP, INSTALL) if own else (TORCH, WRAP, INSTALL):
        seed()
        with way.active(), spied() as made:
            losses = plain(prepared(way, Pictures(), own, **WORKERS))
            numbers = TensorDataset(torch.arange(16))
            loader = prepared(way, numbers, own, batch_size=4, num_workers=2)
            seen = torch.cat([batch for (batch,) in loader]).tolist()
        write(options["folder"], way, rank, losses, made, seen=seen)


def main(folder: str, sampler: str) -> None:
    start()
    trainer = ray.train.torch.TorchTrainer(
        train,
        train_loop_config={"folder": folder, "sampler": sampler},
        scaling_config=ray.train.ScalingConfig(num_workers=RANKS),
        torch_config=ray.train.torch.TorchConfig(backend="gloo"),
        run_config=ray.train.RunConfig(storage_path=folder),
    )
    trainer.fit()
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])

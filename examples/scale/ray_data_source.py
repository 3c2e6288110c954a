"""
Ray Data as the source: each worker of a loader reads a split of one pipeline.

    python examples/scale/ray_data_source.py                       on this machine
    python examples/scale/ray_data_source.py --address HOST:6379   on a cluster that runs

Ray Data reads and transforms on all nodes, and `streaming_split(n)` deals its blocks out to n
readers. Here the readers are not the ranks but the workers of their loaders, so that no thread of
the training process waits for a block, takes it apart or makes batches of it.

- Workers are started by forkserver: a child that is forked from a process that is connected to Ray
  has the connection, but none of its threads. Each worker connects by itself, when it is asked for
  its first batch. For this their dataset lives in a module, ray_splits.py: a class of the script
  itself reaches an actor as a copy, which multiprocessing cannot pickle.
- All splits begin an epoch together: every worker of every rank has to run, so no loader may have
  fewer workers than its rank has splits.
- Blocks go to the readers that ask first, so ranks end at different lengths. A step of
  DistributedDataParallel waits for every rank, and would wait for ever for one that has ended.
  `--end join` lets the others finish: torch's Join answers for the rank that has no more batches.
  `--end shortest` stops all where the first one ends: one small message per step, and what is left
  is not trained on in this epoch. `streaming_split(equal=True)` is the third way: Ray drops rows
  until all splits are equally long.

At the end the ranks tell each other what they have seen: with join, each sample once per epoch.
"""

import argparse
import contextlib
import tempfile
from pathlib import Path

import ray
import ray.data
import ray.train
import ray.train.torch
import torch
import torch.distributed
from ray_splits import Splits
from torch.distributed.algorithms.join import Join

import shmloader


def transformed(rows):
    """Make samples of row numbers, on whatever node Ray Data chooses."""
    indices = rows["id"]
    return {"index": indices, "features": indices[:, None].repeat(16, 1).astype("float32")}


def train(options):
    """Train in the actor of one rank. Returns what all ranks have seen, epoch by epoch."""
    rank = ray.train.get_context().get_world_rank()
    workers = options["workers"]
    mine = options["splits"][rank * workers : (rank + 1) * workers]
    model = ray.train.torch.prepare_model(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    seen = []
    with shmloader.DataLoader(
        Splits(mine, options["batch_size"]),
        batch_size=None,  # they are batches already
        num_workers=workers,
        multiprocessing_context="forkserver",
        persistent_workers=True,  # connecting takes about a second
    ) as loader:
        for _ in range(options["epochs"]):
            seen.append([])
            batches, context = ended(loader, model, options["end"])
            with context:
                for batch in batches:
                    loss = model(batch["features"]).square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    seen[-1] += batch["index"].tolist()
    by_rank = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(by_rank, seen)
    return by_rank


def ended(loader, model, end):
    """Choose how ranks of different lengths end: the batches, and the context of the loop."""
    if end == "join":
        return loader, Join([model])
    return together(loader), contextlib.nullcontext()


def together(batches):
    """Yield batches as long as every rank has one."""
    for batch in batches:
        if not all_have(True):
            return
        yield batch
    all_have(False)


def all_have(one):
    """Tell the other ranks if this one has a batch. Returns True if all have."""
    have = torch.tensor([int(one)])
    torch.distributed.all_reduce(have, torch.distributed.ReduceOp.MIN)
    return bool(have)


def main():
    options = parsed()
    if options.address:
        # Every node gets a copy of this folder, for its modules.
        ray.init(options.address, runtime_env={"working_dir": str(Path(__file__).parent)})
    else:
        ray.init(
            num_cpus=4,
            include_dashboard=False,
            object_store_memory=100_000_000,
            log_to_driver=False,
        )
    # An odd number of blocks: no two ranks can get the same number of samples.
    rows = ray.data.range(options.samples, override_num_blocks=options.blocks)
    splits = rows.map_batches(transformed).streaming_split(options.ranks * options.workers)
    with tempfile.TemporaryDirectory() as folder:
        trainer = ray.train.torch.TorchTrainer(
            train,
            train_loop_config={**vars(options), "splits": splits},
            scaling_config=ray.train.ScalingConfig(num_workers=options.ranks),
            torch_config=ray.train.torch.TorchConfig(backend="gloo"),
            # Of a cluster: a folder that all nodes share.
            run_config=ray.train.RunConfig(storage_path=options.storage or folder),
        )
        by_rank = trainer.fit().return_value
    ray.shutdown()
    check(by_rank, options)


def check(by_rank, options):
    """
    Compare what the ranks have seen with what there is.

    Raises:
        SystemExit: A sample came too often; or, with join, not at all.
    """
    for epoch, of_ranks in enumerate(zip(*by_rank, strict=True)):
        seen = sorted(index for indices in of_ranks for index in indices)
        counts = ", ".join(str(len(indices)) for indices in of_ranks)
        print(f"epoch {epoch}: {len(seen)} of {options.samples} samples; by rank: {counts}")
        if len({*seen}) < len(seen):
            raise SystemExit("a sample came twice")
        if options.end == "join" and seen != [*range(options.samples)]:
            raise SystemExit("a sample did not come")
    print("no sample came twice" + (", and none is missing" if options.end == "join" else ""))


def parsed():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--address", help="of a Ray cluster; without it, one is started here")
    parser.add_argument("--storage", help="a folder that all nodes of the cluster share")
    parser.add_argument("--end", choices=["join", "shortest"], default="join")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2, help="of each rank")
    parser.add_argument("--samples", type=int, default=280)
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()

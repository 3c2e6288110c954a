"""
A loader in each worker of Ray Train: forked inside the actor, and Ray leaves it as it is.

    python examples/scale/ray_train.py                       on this machine
    python examples/scale/ray_train.py --address HOST:6379   on a cluster that runs

Ray Train runs `train` in an actor per rank. A loader there has workers as anywhere else: they are
children of the actor's process, and end with it. They are forked, and use nothing of Ray: what of
Ray runs in the actor are threads, and threads are not forked.

`prepare_data_loader` builds a loader of torch's class anew, unless yours has a DistributedSampler
already. So either call `shmloader.install()` in `train`, which serves that loader too, or construct
the sampler yourself, and yours is kept with its class and all its options. `train` does the second;
with `--install` it does the first.

At the end the ranks tell each other what they have seen: each sample once, from slots.
"""

import argparse
import tempfile

import ray
import ray.train
import ray.train.torch
import torch
import torch.distributed
from torch.utils.data import Dataset, DistributedSampler

import shmloader


class Samples(Dataset):
    """`count` samples: (16,) float32, and their own index to recognize them by."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.full((16,), index / self.count), index


def made(options):
    """Make the loader of a rank, with a sampler of ours or with Ray's."""
    dataset = Samples(options["samples"])
    common = {"batch_size": options["batch_size"], "num_workers": 2}
    if options["install"]:
        shmloader.install()
        loader = torch.utils.data.DataLoader(dataset, shuffle=True, **common)
    else:
        sampler = DistributedSampler(dataset)
        loader = shmloader.DataLoader(dataset, sampler=sampler, persistent_workers=True, **common)
    return ray.train.torch.prepare_data_loader(loader)


def train(options):
    """Train in the actor of one rank. Returns what all ranks have seen, and their batches."""
    loader = made(options)
    model = ray.train.torch.prepare_model(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for epoch in range(options["epochs"]):
        loader.sampler.set_epoch(epoch)
        for features, indices in loader:
            loss = (model(features) - features.mean()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += indices.tolist()
        ray.train.report({"loss": loss.item()})
    batches = shmloader.stats(loader).batches  # those that came through slots
    shmloader.close(loader)
    by_rank = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(by_rank, (seen, batches))
    return by_rank


def main():
    options = parsed()
    if options.address:
        ray.init(options.address)
    else:
        ray.init(
            num_cpus=4,
            include_dashboard=False,
            object_store_memory=100_000_000,
            log_to_driver=False,
        )
    with tempfile.TemporaryDirectory() as folder:
        trainer = ray.train.torch.TorchTrainer(
            train,
            train_loop_config=vars(options),
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
        SystemExit: A sample came too often or not at all, or not through a slot.
    """
    seen = [index for indices, _ in by_rank for index in indices]
    if sorted(seen) != sorted([*range(options.samples)] * options.epochs):
        raise SystemExit("a sample came too often, or not at all")
    for rank, (indices, batches) in enumerate(by_rank):
        print(f"rank {rank}: {len(indices)} samples in {batches} batches from slots")
        if batches * options.batch_size < len(indices):
            raise SystemExit("batches came another way")
    print(f"{options.epochs} epochs of {options.samples} samples, each once")


def parsed():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--address", help="of a Ray cluster; without it, one is started here")
    parser.add_argument("--storage", help="a folder that all nodes of the cluster share")
    parser.add_argument("--install", action="store_true", help="by install(), and Ray's sampler")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""
A loader per rank under torchrun: each reads its share of the samples, with workers of its own.

    torchrun --standalone --nproc-per-node 2 examples/scale/torchrun_ranks.py

Of shmloader there is nothing here but the import of DataLoader. torch's DistributedSampler deals
out the samples, and DistributedDataParallel averages the gradients of all ranks after each step.

What the slots of a loader may keep, `ring_bytes`, is by default half of the machine's memory. The
ranks of one machine share that half: torchrun tells each in LOCAL_WORLD_SIZE how many there are.
The first line of each rank shows its part, as the logger "shmloader" tells it.

At the end the ranks tell each other what they have seen: each sample once in each epoch.
"""

import argparse
import logging

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, DistributedSampler

from shmloader import DataLoader


class Samples(Dataset):
    """`count` samples: (16,) float32, and their own index to recognize them by."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.full((16,), index / self.count), index


def main():
    options = parsed()
    torch.distributed.init_process_group("gloo")
    show_ring_bytes()
    # Of a number that the ranks do not divide, the sampler repeats some: drop_last=True drops them.
    dataset = Samples(options.samples)
    sampler = DistributedSampler(dataset)
    model = DistributedDataParallel(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    with DataLoader(
        dataset, options.batch_size, sampler=sampler, num_workers=2, persistent_workers=True
    ) as loader:
        for epoch in range(options.epochs):
            sampler.set_epoch(epoch)  # another order in each
            for features, indices in loader:
                loss = (model(features) - features.mean()).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                seen += indices.tolist()
    check(seen, options)
    torch.distributed.destroy_process_group()


def show_ring_bytes():
    """Print what the logger tells of the start of workers, and nothing else of it."""
    rank = torch.distributed.get_rank()
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"rank {rank}: %(message)s"))
    handler.addFilter(lambda record: "workers started" in record.msg)
    logging.getLogger("shmloader").addHandler(handler)
    logging.getLogger("shmloader").setLevel(logging.DEBUG)


def check(seen, options):
    """
    Compare what all ranks have seen with what there is.

    Raises:
        SystemExit: A sample came too often, or not at all.
    """
    by_rank = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(by_rank, seen)
    if torch.distributed.get_rank() > 0:
        return
    seen = [index for indices in by_rank for index in indices]
    if sorted(seen) != sorted([*range(options.samples)] * options.epochs):
        raise SystemExit("a sample came too often, or not at all")
    counts = ", ".join(str(len(each)) for each in by_rank)
    print(f"{options.epochs} epochs of {options.samples} samples, each once; by rank: {counts}")


def parsed():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""
A training that a scheduler may stop at any time, and start again to go on where it was.

    python examples/preempted.py checkpoint.pt
    torchrun --nproc-per-node=2 examples/preempted.py checkpoint.pt

At SIGTERM or SIGUSR1 it ends its step, saves, and exits with the code that has the scheduler start
it again (`--code`). The next run with that file has the batches and losses that would have come.

- The handler only notes the signal, and the loop looks between two steps: in the middle of one
  there is nothing to save that fits together.
- Workers do nothing on a signal that this process handles, so the step gets its batch although
  schedulers signal every process of the job.
- Ranks hear the signal at different moments, so they agree on it: all stop after the same step.
- One file has everything of all ranks, and takes the place of the old one when it is complete.
"""

import argparse
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, DistributedSampler

from shmloader import DataLoader

EPOCHS, COUNT, BATCH = 3, 1600, 16


class Stop:
    """Notes signals, of which the last one counts."""

    def __init__(self, *numbers):
        self.number = 0
        for number in numbers:
            signal.signal(number, self._note)

    def _note(self, number, frame):
        self.number = number

    def is_wanted(self):
        """Returns True on all ranks if one has got a signal."""
        if not dist.is_initialized():
            return self.number != 0
        number = torch.tensor(self.number)
        dist.all_reduce(number, dist.ReduceOp.MAX)  # with NCCL in a group of gloo's
        return bool(number)


class Noisy(Dataset):
    """Random samples of ten classes: the draws are a run's own, too."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return torch.randn(32) + index % 10, index % 10


class Checkpoint:
    """What makes a run: saved in one file, and loaded from it if there is one."""

    def __init__(self, path, **parts):
        self.path, self.parts = path, parts

    def save(self, epoch, loader):
        own = {"loader": loader.state_dict(), "random": torch.get_rng_state()}
        of_ranks = [own]
        if dist.is_initialized():
            of_ranks = [None] * dist.get_world_size()
            dist.all_gather_object(of_ranks, own)
        if rank() == 0:
            parts = {name: part.state_dict() for name, part in self.parts.items()}
            with open(f"{self.path}.new", "wb") as file:
                torch.save({"epoch": epoch, "ranks": of_ranks, **parts}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(f"{self.path}.new", self.path)
        if dist.is_initialized():
            dist.barrier()  # a rank that ends sooner has the others ended

    def load(self, loader):
        """Returns the epoch to go on with."""
        if not os.path.exists(self.path):
            return 0
        saved = torch.load(self.path)
        for name, part in self.parts.items():
            part.load_state_dict(saved[name])
        own = saved["ranks"][rank()]
        loader.load_state_dict(own["loader"])
        torch.set_rng_state(own["random"])
        return saved["epoch"]


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("path", help="the checkpoint")
    parser.add_argument("--code", type=int, default=os.EX_TEMPFAIL, help="to exit with if stopped")
    arguments = parser.parse_args()
    stop = Stop(signal.SIGTERM, signal.SIGUSR1)  # before workers start
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = Noisy()
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    sampler = DistributedSampler(dataset, ranks, rank())
    loader = DataLoader(dataset, BATCH, sampler=sampler, num_workers=2, seed_by="batch")
    model = torch.nn.Linear(32, 10)
    if dist.is_initialized():
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    checkpoint = Checkpoint(arguments.path, model=model, optimizer=optimizer)
    is_stopped = False
    for epoch in range(checkpoint.load(loader), EPOCHS):
        sampler.set_epoch(epoch)
        for samples, classes in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(samples), classes)
            loss.backward()
            optimizer.step()
            time.sleep(0.01)  # a larger model's
            line = f"rank {rank()}, epoch {epoch}: loss {loss.item():.9f}\n"
            print(line, end="", flush=True)  # in one piece, beside other ranks
            if is_stopped := stop.is_wanted():
                checkpoint.save(epoch, loader)
                break
        if is_stopped:
            break
    loader.close()
    if dist.is_initialized():
        dist.destroy_process_group()
    sys.exit(arguments.code if is_stopped else 0)


if __name__ == "__main__":
    main()

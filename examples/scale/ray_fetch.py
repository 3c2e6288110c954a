"""
Samples made on other nodes: actors of Ray fetch, and the workers of a local loader only receive.

    python examples/scale/ray_fetch.py                        two nodes on this machine
    python examples/scale/ray_fetch.py --address HOST:6379    where ray_makers.py runs already

For a machine whose own processors do not decode fast enough. `Fetched` and `collate` are all that a
training needs; `ray_makers.py` starts the actors, and the rest here checks what comes.

- The training process does not import Ray. Each worker connects by itself when it is asked for its
  first batch, so nothing of Ray runs before the workers are forked. If your training uses Ray,
  as under Ray Train, start workers with multiprocessing_context="forkserver".
- Actors are found by their names, so another program may have started them.
- A batch is divided among all actors, and all are asked before the first answer is awaited. With W
  workers and A actors W × A requests are in flight. Workers only wait, so there may be many.
- An answer lies in the object store of this node. The worker gets arrays that are views of it, and
  copies them once: into the slot of its batch.
- A lost actor costs no batch: what it was asked for, another one is asked for, and it is asked no
  more. Samples depend on their index alone, so the batch is the same.

While it trains, an actor is lost; or its process with `--lose process`, which Ray starts again; or
one of two nodes with `--lose node --nodes 2`. Every batch is compared with that of a loader which
makes the samples here.
"""

import argparse
import contextlib
import os
import secrets
import subprocess
import sys
from pathlib import Path

import numpy
import torch
from ray_makers import NAMESPACE, Maker, names_of
from torch.utils.data import Dataset

import shmloader

MAKERS = Path(__file__).with_name("ray_makers.py")
PATIENCE_S = 10  # longer than a share of a batch takes; a node that is gone gives no error at first
LOSING = {"actor": "lose maker-0", "process": "crash maker-0", "node": "leave"}


class Fetched(Dataset):
    """`count` samples that named actors make: of each batch, each actor makes a share."""

    def __init__(self, address, names, count):
        self.address, self.names, self.count = address, names, count
        self.actors = None  # in a worker, once it is connected

    def __len__(self):
        return self.count

    def __getitems__(self, indices):
        import ray

        if self.actors is None:
            quiet = {"log_to_driver": False, "logging_level": "WARNING"}
            ray.init(self.address, namespace=NAMESPACE, **quiet)
            self.actors = [ray.get_actor(name) for name in self.names]
        size = -(-len(indices) // len(self.actors))
        shares = [indices[first : first + size] for first in range(0, len(indices), size)]
        asked = [
            (actor, actor.make.remote(share), share)
            for actor, share in zip(self.actors, shares, strict=False)
        ]
        return [self.answer(ray, *each) for each in asked]

    def answer(self, ray, actor, request, share):
        errors = ray.exceptions
        while True:
            try:
                return ray.get(request, timeout=PATIENCE_S)
            except (errors.RayActorError, errors.ObjectLostError, errors.GetTimeoutError):
                self.actors = [other for other in self.actors if other is not actor]
                if not self.actors:
                    raise
                actor = self.actors[0]
                request = actor.make.remote(share)


def collate(shares):
    """Copy the shares of a batch behind one another, into the slot that the worker writes."""
    pictures, labels = zip(*shares, strict=True)
    shape = sum(map(len, pictures)), *pictures[0].shape[1:]
    batch = shmloader.empty(shape, dtype=torch.uint8)
    numpy.concatenate(pictures, out=batch.numpy())
    return batch, torch.from_numpy(numpy.concatenate(labels))


class Local(Dataset):
    """The same samples, made where they are used."""

    def __init__(self, side, count):
        self.maker, self.count = Maker(side), count

    def __len__(self):
        return self.count

    def __getitems__(self, indices):
        return [self.maker.make(indices)]


@contextlib.contextmanager
def makers(options):
    """Start the actors by a program of their own. Gives their address, and a way to ask it."""
    # Ray listens on every interface, and runs what it is sent: by those who know this alone.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    given = {name: getattr(options, name) for name in ("nodes", "actors", "side")}
    command = [sys.executable, MAKERS, *(f"--{name}={value}" for name, value in given.items())]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:

        def ask(line):
            program.stdin.write(f"{line}\n")
            program.stdin.flush()
            return program.stdout.readline().strip()

        address = program.stdout.readline().strip()
        if not address:
            raise SystemExit("the nodes did not start")
        yield address, ask
    # Leaving Popen closes its standard input, which ends the program, and waits.


def train(options, address, ask):
    """
    Compare every batch with a local one; after a quarter of them, lose an actor.

    Raises:
        SystemExit: A batch differs.
    """
    loading = {"batch_size": options.batch_size, "collate_fn": collate, "num_workers": 2}
    fetched = Fetched(address, names_of(options.actors), options.samples)
    with (
        shmloader.DataLoader(fetched, **loading) as remote,
        shmloader.DataLoader(Local(options.side, options.samples), **loading) as local,
    ):
        for number, (batch, right) in enumerate(zip(remote, local, strict=True)):
            if not all(map(torch.equal, batch, right)):
                raise SystemExit(f"batch {number} differs from the local loader's")
            if ask and options.lose and number == len(local) // 4:
                print(ask(LOSING[options.lose]))
        batches = remote.stats().batches
    print(f"{batches} batches of {options.samples} samples are equal to a local loader's")
    print(f"the training process has imported Ray: {'yes' if 'ray' in sys.modules else 'no'}")


def main():
    options = parsed()
    if options.address:
        train(options, options.address, None)
        return
    with makers(options) as (address, ask):
        train(options, address, ask)
        print(ask("count"))


def parsed():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--address", help="of a Ray cluster; without it, one is started here")
    parser.add_argument("--nodes", type=int, default=1, help="for the actors")
    parser.add_argument("--actors", type=int, default=3)
    parser.add_argument("--side", type=int, default=64, help="of a square picture, in pixels")
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lose", choices=LOSING, default="actor")
    return parser.parse_args()


if __name__ == "__main__":
    main()

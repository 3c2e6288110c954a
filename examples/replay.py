"""
A replay buffer whose batches come through workers: `python examples/replay.py`.

`Replay` is the dataset, `Draws` draws the rows, `Rows` is a storage; the rest plays and checks.

- The storage lies in shared memory: rows that the trainer adds while it trains are seen by workers
  that were started before. `Rows` has the interface of TorchRL's storages (`set`, `get`, `len`), so
  `LazyMemmapStorage(size)` may take its place.
- `__getitems__` is asked for a whole batch: one gather for each column, straight into its slot.
- Batches are drawn ahead. A row is drawn only if it is not among the next ones that the trainer
  will write over while the batch is on its way, so no worker reads a row that is half written.
- Batches lag: what was added within the last `ahead` batches may not be among them yet.
"""

import torch
from torch.utils.data import Dataset, Sampler

import shmloader

WORKERS, PREFETCH = 2, 2


class Rows:
    """Columns of a fixed number of rows, in shared memory."""

    def __init__(self, size, columns):
        self.columns = {
            name: torch.empty((size, *shape), dtype=dtype).share_memory_()
            for name, (shape, dtype) in columns.items()
        }
        self.filled = torch.zeros((), dtype=torch.int64).share_memory_()

    def __len__(self):
        return int(self.filled)

    def set(self, places, data):
        for name, column in self.columns.items():
            column[places] = data[name]
        self.filled.fill_(max(len(self), int(places.max()) + 1))

    def get(self, places):
        """Gather rows; in a worker into the slot of the batch that is being made."""
        gathered = {}
        for name, column in self.columns.items():
            out = shmloader.empty((len(places), *column.shape[1:]), column.dtype)
            gathered[name] = torch.index_select(column, 0, places, out=out)
        return gathered


class Replay(Dataset):
    """
    A ring of rows: the oldest are written over.

    Args:
        storage: Rows that all processes share.
        size: How many it can have.
    """

    def __init__(self, storage, size):
        self.storage, self.size = storage, size
        self.added = 0  # rows so far; of the trainer alone

    def __len__(self):
        return len(self.storage)

    def add(self, data):
        """Add rows, in the training process."""
        count = len(next(iter(data.values())))
        self.storage.set(torch.arange(self.added, self.added + count) % self.size, data)
        self.added += count

    def __getitems__(self, places):
        return self.storage.get(torch.tensor(places))


class Draws(Sampler):
    """
    Batches of random rows, without an end.

    Args:
        ahead: Rows that may be added while a batch is on its way: these are not drawn.
    """

    def __init__(self, replay, batch_size, ahead, generator):
        self.replay, self.batch_size, self.ahead, self.generator = (
            replay, batch_size, ahead, generator,
        )  # fmt: skip

    def __iter__(self):
        while True:
            added, size = self.replay.added, self.replay.size
            oldest = max(0, added + self.ahead - size)  # of those that stay for as long
            drawn = torch.randint(oldest, added, (self.batch_size,), generator=self.generator)
            yield (drawn % size).tolist()


def as_it_is(batch):
    """Collate nothing: the storage gathered a batch."""
    return batch


def open_loader(replay, batch_size, rows_per_step, seed=0):
    """Make a loader for a training that adds rows before each step."""
    in_flight = WORKERS * PREFETCH + 1  # and the one that is trained on
    draws = Draws(
        replay, batch_size, (in_flight + 1) * rows_per_step, torch.Generator().manual_seed(seed)
    )
    return shmloader.DataLoader(
        replay, batch_sampler=draws, collate_fn=as_it_is, num_workers=WORKERS,
        prefetch_factor=PREFETCH,
    )  # fmt: skip


def transitions(first, count):
    """Make rows of which each tells its number twice."""
    numbers = torch.arange(first, first + count)
    frames = (numbers % 251).to(torch.uint8)[:, None, None].expand(count, 84, 84)
    return {"frame": frames, "action": numbers}


def play(steps, size=4096, batch_size=64, rows_per_step=16):
    """Add and sample in turns. Returns how many rows were right, and of how many."""
    storage = Rows(size, {"frame": ((84, 84), torch.uint8), "action": ((), torch.int64)})
    replay = Replay(storage, size)
    replay.add(transitions(0, 1024))
    right = 0
    with open_loader(replay, batch_size, rows_per_step) as loader:
        for _, batch in zip(range(steps), loader, strict=False):
            frames = batch["frame"].flatten(1)
            told = (batch["action"] % 251).to(torch.uint8)[:, None]
            right += int((frames == told).all(1).sum())
            replay.add(transitions(replay.added, rows_per_step))
    return right, steps * batch_size


def main():
    right, of = play(500)
    print(f"{right} of {of} rows are whole, and were in the buffer")


if __name__ == "__main__":
    main()

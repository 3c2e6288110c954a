"""What users type; neither checker may complain of a line."""

from typing import Any, assert_type

import torch
import torch.utils.data
from torch.utils.data import Dataset, TensorDataset

import shmloader
from shmloader import DataLoader, Held, Stats, wrap

dataset = TensorDataset(torch.zeros(8, 3))

every_option = DataLoader(
    dataset,
    4,
    True,
    num_workers=2,
    collate_fn=torch.stack,
    timeout=1.5,
    multiprocessing_context="spawn",
    generator=torch.Generator(),
    prefetch_factor=2,
    persistent_workers=True,
    in_order=False,
    slots=8,
    slot_bytes=1 << 20,
    ring_bytes=1 << 30,
    keep_pages=False,
    restarts=3,
    worker_bytes=1 << 30,
    device="cuda",
)
defaults = DataLoader(dataset, slots=None, slot_bytes=None, ring_bytes=None)
assert_type(DataLoader(dataset), DataLoader[tuple[torch.Tensor, ...]])
assert_type(DataLoader(range(640)), DataLoader[int])
assert_type(DataLoader(["a", "b"]), DataLoader[str])
assert_type(DataLoader(torch.zeros(64, 8), batch_size=4), DataLoader[torch.Tensor])
assert_type(DataLoader(shmloader.SharedList(["a", "b"])), DataLoader[str])
chosen = DataLoader(range(8), assignment="dynamic", seed_by="batch")
counted = DataLoader(range(8), assignment="cycle", seed_by="worker", fetch_threads=4)
chosen.assignment = "cycle"
shmloader.install(assignment="dynamic", seed_by="batch", fetch_threads=8)
shmloader.install(slots=8, device=shmloader.Device("cuda", prefetch=4, transform=torch.stack))
on_device = DataLoader(range(8), device=torch.device("cuda", 1), resumable=True, nice=19)
assert_type(on_device.device, shmloader.Device | None)
no_batches = DataLoader(dataset, batch_size=None)
sampled = DataLoader(dataset, batch_sampler=[[0, 1], [2, 3]])


def takes_torchs(loader: torch.utils.data.DataLoader[Any]) -> None:
    """Ours is a subclass of torch's."""


takes_torchs(defaults)

with DataLoader(dataset) as loader:
    assert_type(loader.slots, int | None)
    for batch in loader:
        assert_type(batch, Any)
    loader.close()

assert_type(len(loader), int)
assert_type(repr(loader), str)
assert_type(loader.keep_pages, bool)
assert_type(loader.restarts, int)
with wrap(loader) as wrapped:
    wrapped.close()


class Trays(DataLoader[tuple[torch.Tensor, ...]]):
    """A subclass that names what it loads, with an option of its own."""

    def __init__(self, trays: TensorDataset, *, depth: int = 2) -> None:
        super().__init__(trays, batch_size=depth, slots=4)
        self.depth = depth

    def __repr__(self) -> str:
        return f"Trays(depth={self.depth})"


with Trays(dataset, depth=3) as trays:
    assert_type(trays, Trays)
    assert_type(trays.stats(), Stats)

stats = defaults.stats()
assert_type(stats, Stats)
assert_type(stats.batches, int)
assert_type(stats.wait_s, float)
assert_type(stats.slots, dict[str, int])
assert_type(stats + stats, Stats)
assert_type(defaults.held(), list[Held])
assert_type([held.held_s for held in defaults.held()], list[float])

integers: torch.utils.data.DataLoader[int] = torch.utils.data.DataLoader([1, 2])  # type: ignore
assert_type(wrap(integers), DataLoader[int])
assert_type(wrap(integers).dataset, Dataset[int])
assert_type(wrap(integers, slots=None, restarts=2), DataLoader[int])
assert_type(wrap(integers, assignment="dynamic", fetch_threads=2), DataLoader[int])

assert_type(shmloader.empty(3), torch.Tensor)
assert_type(shmloader.empty((2, 3), torch.uint8), torch.Tensor)
assert_type(shmloader.empty([2, 3], dtype=torch.uint8), torch.Tensor)
assert_type(shmloader.__version__, str)

rows = shmloader.SharedList([("a", 1), ("b", 2)])
assert_type(rows, shmloader.SharedList[tuple[str, int]])
assert_type(rows[0], tuple[str, int])
assert_type(rows[1:], shmloader.SharedList[tuple[str, int]])
assert_type([name for name, _ in rows], list[str])
assert_type(shmloader.SharedDict({"a": 1})["a"], int)
assert_type(shmloader.share(dataset, "rows").replaced[0].bytes, int)

try:
    next(iter(defaults))
except shmloader.BatchTooLarge as error:
    value_error: ValueError = error
except shmloader.OutOfSharedMemory as error:
    memory_error: MemoryError = error
except shmloader.ShmloaderError:
    pass

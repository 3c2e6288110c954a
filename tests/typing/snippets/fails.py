"""Mistakes of users; both checkers complain of each marked line, and of no other."""

import torch
import torch.utils.data
from torch.utils.data import TensorDataset

import shmloader
from shmloader import DataLoader, wrap

dataset = TensorDataset(torch.zeros(8, 3))

DataLoader(dataset, slots="8")  # error
DataLoader(dataset, slot_bytes=1.5)  # error
DataLoader(dataset, ring_bytes=1e9)  # error
DataLoader(dataset, restarts=None)  # error
DataLoader(dataset, keep_pages="no")  # error
DataLoader(dataset, slot_count=8)  # error
DataLoader(dataset, num_workers="2")  # error
DataLoader(dataset, prefetch_factor=0.5)  # error
DataLoader()  # error
DataLoader(8)  # error
DataLoader(iter([1, 2]))  # error
DataLoader(dataset, assignment="dyn")  # error
DataLoader(dataset, seed_by="bach")  # error
DataLoader(dataset, fetch_threads="auto")  # error
DataLoader(dataset, device=1)  # error
DataLoader(dataset, device_transform=len)  # error
shmloader.Device("cuda", prefetch="2")  # error

loader = DataLoader(dataset)
loader.stats().batchs  # error
loader.stats().batches = 0  # error
loader.stats()["batches"]  # error
loader.stats(1)  # error
loader.held().slots  # error
loader.closed()  # error
count: str = loader.stats().batches  # error
loader.slotz  # error
loader.restarts + "1"  # error
loader.assignment = "dyn"  # error
loader.device.transforms  # error
shmloader.install(slot=8)  # error
shmloader.install(assignment="dyn")  # error
shmloader.install(seed_by="bach")  # error
shmloader.install(fetch_threads="auto")  # error
shmloader.log.tells("a line")  # error

rows = shmloader.SharedList([1, 2])
rows[0] = 3  # error
rows.append(3)  # error
rows["a"]  # error
shmloader.SharedList()  # error
shmloader.SharedDict({1.5: "a"})  # error


def wrong_uses(theirs: torch.utils.data.DataLoader[int]) -> None:
    """What wrap() takes and gives."""
    wrap(dataset)  # error
    wrap(theirs, 8)  # error
    wrap(theirs, slot=8)  # error
    wrap(theirs, restarts="all")  # error
    wrap(theirs, assignment="dyn")  # error
    wrap(theirs, seed_by="bach")  # error
    wrap(theirs, fetch_threads="auto")  # error
    strings: DataLoader[str] = wrap(theirs)  # error


shmloader.empty("3")  # error
shmloader.empty(3, "uint8")  # error
shmloader.empty()  # error
shmloader.full((3,), 1)  # error

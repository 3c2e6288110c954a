"""What `stats()`, `shmloader top` and the exporter say of caches."""

import json
import os

import torch
from prometheus_client import CollectorRegistry
from torch.utils.data import ConcatDataset, Dataset, Subset

from shmloader import DataLoader, cached
from shmloader.cli.attach.process_facts import process
from shmloader.cli.attach.segments import look_into
from shmloader.cli.attach.trainers import find
from shmloader.cli.top.as_json import as_record
from shmloader.cli.top.text import lines_of
from shmloader.data.cache import caches_in
from shmloader.views.exporter import LoaderCollector
from tests.helpers.kept import Fetched

ROOM = 4 << 20
COUNT = 12


class Holding(Dataset):
    """A dataset that has caches in attributes, in a list, and in a dict."""

    def __init__(self, one, others, named):
        self.one = one
        self.others = others
        self.named = named

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return self.one[index]


def test_caches_are_found_in_a_dataset():
    """A dataset may be a cache, wrap one, or hold some; each is found once."""
    made = [cached(Fetched(COUNT), ROOM) for _ in range(4)]
    one, two, three, four = made
    holding = Holding(one, [two, one], {"name": three})

    assert [one] == caches_in(one)
    assert [one] == caches_in(Subset(one, [1, 2]))
    assert [one, two] == caches_in(ConcatDataset([one, Subset(two, [0])]))
    assert [one, two, three] == caches_in(holding)
    assert [] == caches_in([1, 2]) + caches_in(torch.zeros(3)) + caches_in(Fetched(3))
    assert [four] == caches_in(cached(four, ROOM))[1:]
    assert f"cached(Fetched of {COUNT})" == repr(one)


def test_top_shows_the_caches_of_each_loader():
    """A loader is shown with the caches that it reads, and with no others."""
    dataset = cached(Fetched(COUNT), ROOM)
    with (
        DataLoader(dataset, batch_size=4, num_workers=1, persistent_workers=True) as loader,
        DataLoader(Fetched(COUNT), num_workers=1, persistent_workers=True) as other,
    ):
        for each in (loader, other, loader):
            list(each)
        seen = as_record([find(os.getpid())])
        lines = [line.text for line in lines_of([find(os.getpid())])]
        size = dataset.cache_stats().bytes
    numbers = [each._service.pool.number for each in (loader, other)]
    # Loaders of earlier tests may not have been collected yet.
    loaders = {each["loader"]: each for each in seen["trainers"][0]["loaders"]}
    first, second = (loaders[number] for number in numbers)

    json.dumps(seen)
    assert [] == second["caches"]
    (cache,) = first["caches"]
    assert {
        "cache": dataset.cache_stats().number,
        "pid": os.getpid(),
        "label": "Fetched",
        "hits": COUNT,
        "misses": COUNT,
        "entries": COUNT,
        "bytes": size,
        "max_bytes": dataset.cache_stats().max_bytes,
        "refused": 0,
    } == cache
    (line,) = [line for line in lines if f"cache {cache['cache']} " in line]
    assert (
        f"Fetched  {COUNT} samples, {size / 1e6:.1f} of 4.2 MB, 50 % of 24 look-ups found them"
        in line
    )


def test_a_closed_or_damaged_cache_is_not_shown():
    """What cannot be read, or was given up, is left out."""
    dataset = cached(Fetched(COUNT), ROOM)
    with DataLoader(dataset, batch_size=4, num_workers=1, persistent_workers=True) as loader:
        list(loader)
        descriptor = dataset._memory._samples.descriptor
        before = os.pread(descriptor, 64, 0)
        seen = []
        for place, data in ((0, b"x"), (8, b"\x09"), (12, b"\xff" * 4), (56, b"\xff" * 8)):
            os.pwrite(descriptor, data, place)
            seen.append(look_into(process(os.getpid()))[0][0].caches)
            os.pwrite(descriptor, before, 0)
        whole = look_into(process(os.getpid()))[0][0].caches
        dataset.close()
        closed = look_into(process(os.getpid()))[0][0].caches

    assert ([()] * 4, 1, ()) == (seen, len(whole), closed)


def test_the_exporter_has_them():
    """Looks by their result, entries and bytes, with the cache's number as a label."""
    dataset = cached(Fetched(COUNT), ROOM)
    loader = DataLoader(dataset)
    list(loader)
    registry = CollectorRegistry()
    registry.register(LoaderCollector({"train": loader}))
    stats = dataset.cache_stats()
    labels = {"loader": "train", "cache": str(stats.number)}

    found = [
        registry.get_sample_value("shmloader_cache_looks_total", {**labels, "result": result})
        for result in ("hit", "miss")
    ]
    found += [
        registry.get_sample_value(f"shmloader_cache_{name}", labels)
        for name in ("entries", "bytes")
    ]
    assert [0, COUNT, COUNT, stats.bytes] == found

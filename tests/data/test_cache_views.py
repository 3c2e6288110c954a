"""What `stats()` and the exporter say of caches."""

import torch
from prometheus_client import CollectorRegistry
from torch.utils.data import ConcatDataset, Subset

from shmloader import DataLoader, cached
from shmloader.data.cache import caches_in
from shmloader.views.exporter import LoaderCollector
from tests.helpers.datasets import Computed
from tests.helpers.kept import Fetched

ROOM = 4 << 20
COUNT = 12


def test_caches_are_found_in_a_dataset():
    """A dataset may be a cache, wrap one, or hold some; each is found once."""
    made = [cached(Fetched(COUNT), ROOM) for _ in range(4)]
    one, two, three, four = made
    holding = Computed(COUNT, int)
    vars(holding).update(one=one, others=[two, one], named={"name": three})

    assert [one] == caches_in(one)
    assert [one] == caches_in(Subset(one, [1, 2]))
    assert [one, two] == caches_in(ConcatDataset([one, Subset(two, [0])]))
    assert [one, two, three] == caches_in(holding)
    assert [] == caches_in([1, 2]) + caches_in(torch.zeros(3)) + caches_in(Fetched(3))
    assert [four] == caches_in(cached(four, ROOM))[1:]
    assert f"cached(Fetched of {COUNT})" == repr(one)


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

"""The collector for Prometheus, read back by prometheus_client's own parsers."""

import functools
import importlib
import re
import sys
from types import SimpleNamespace

import pytest
import torch
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

import shmloader
from shmloader.stats import Stats, Times, WorkerStats
from shmloader.views.exporter import BUCKETS_S, LoaderCollector, buckets
from tests.helpers.programs import ROOT

NEXT = Times.of(1.203e9, 1.2e9, ((1_000_000, 2), (1_000_001, 1), (1_200_000_000, 1)))
STEP = Times.of(200e9, 200e9, ((200_000_000_000, 1),))
STATS = Stats(
    batches=7,
    bytes=4096,
    wait_s=1.5,
    restarts=2,
    replaced=3,
    left_out=9,
    resident_bytes=8192,
    locked_bytes=4096,
    pickled_bytes=10,
    pickled_batches=1,
    slots={"free": 3, "leased": 1},
    spills={"too_few_slots": 4},
    copied={"in_place": 6},
    next=NEXT,
    step=STEP,
    workers=(WorkerStats(1.0, 2.0, 3.0, 4.0, 5, 6), WorkerStats(batches=2)),
    epochs=(SimpleNamespace(number=3),),
)


def samples(collector, generate=generate_latest, read=parse):
    """Scrape a registry of its own; values by name and labels."""
    registry = CollectorRegistry()
    registry.register(collector)
    text = generate(registry).decode()
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in read(text)
        for sample in family.samples
    }


WRITTEN = [(generate_latest, parse), (generate_openmetrics, parse_openmetrics)]


@pytest.mark.parametrize(("generate", "read"), WRITTEN, ids=["text", "openmetrics"])
def test_counts_are_exported(generate, read):
    """Each count has a standard name, its unit, and the labels that tell what it is of."""
    found = samples(LoaderCollector({"train": lambda: STATS}), generate, read)
    loader = ("loader", "train")
    workers = {
        ("shmloader_worker_seconds_total", loader, ("state", state), ("worker", number)): value
        for number, values in (("0", (1, 2, 3, 4)), ("1", (0, 0, 0, 0)))
        for state, value in zip(
            ("fetching", "collating", "starved", "blocked"), values, strict=True
        )
    }
    expected = workers | {
        ("shmloader_batches_total", loader): 7,
        ("shmloader_payload_bytes_total", loader): 4096,
        ("shmloader_wait_seconds_total", loader): 1.5,
        ("shmloader_worker_batches_total", loader, ("worker", "0")): 5,
        ("shmloader_worker_batches_total", loader, ("worker", "1")): 2,
        ("shmloader_worker_payload_bytes_total", loader, ("worker", "0")): 6,
        ("shmloader_worker_payload_bytes_total", loader, ("worker", "1")): 0,
        ("shmloader_spilled_batches_total", loader, ("reason", "too_few_slots")): 4,
        ("shmloader_device_batches_total", loader, ("way", "in_place")): 6,
        ("shmloader_restarts_total", loader): 2,
        ("shmloader_replaced_workers_total", loader): 3,
        ("shmloader_left_out_samples_total", loader): 9,
        ("shmloader_pickled_batches_total", loader): 1,
        ("shmloader_pickled_bytes_total", loader): 10,
        ("shmloader_slots", loader, ("state", "free")): 3,
        ("shmloader_slots", loader, ("state", "leased")): 1,
        ("shmloader_resident_bytes", loader): 8192,
        ("shmloader_locked_bytes", loader): 4096,
        ("shmloader_epoch", loader): 3,
        ("shmloader_next_seconds_count", loader): 4,
        ("shmloader_next_seconds_sum", loader): 1.203,
        ("shmloader_step_seconds_count", loader): 1,
        ("shmloader_step_seconds_sum", loader): 200,
    }

    assert expected == {key: value for key, value in found.items() if "_bucket" not in key[0]}


def test_the_table_of_docs_names_all():
    """docs/api.md lists each metric by the name that a scrape shows, and no other."""
    page = (ROOT / "docs" / "api.md").read_text().split("## Prometheus")[1]
    exported = {
        family.name + "_total" * (family.type == "counter")
        for family in LoaderCollector({}).describe()
    }

    assert exported == {*re.findall(r"`(shmloader_\w+)`", page)}


def test_histograms_are_cumulative():
    """A duration counts in each bucket whose end it does not exceed, and all in the last one."""
    found = dict(buckets(NEXT))

    assert [*map(str, BUCKETS_S), "+Inf"] == [*found]
    assert [0, 2, 3, 3, 4, 4] == [
        found[end] for end in ("0.0005", "0.001", "0.002", "1.0", "2.0", "+Inf")
    ]
    assert [0, 1] == [dict(buckets(STEP))[end] for end in ("100.0", "+Inf")]
    assert {0} == {*dict(buckets(Times())).values()}


def test_loaders_are_asked_at_each_scrape():
    """Loaders that are added and removed are seen, and registering asks none."""
    loaders, asked = {}, []

    def stats():
        asked.append(1)
        return STATS

    registry = CollectorRegistry(auto_describe=True)
    loaders["train"] = stats
    registry.register(LoaderCollector(loaders))
    assert [] == asked

    assert 7 == registry.get_sample_value("shmloader_batches_total", {"loader": "train"})
    loaders["valid"] = loaders.pop("train")
    assert registry.get_sample_value("shmloader_batches_total", {"loader": "train"}) is None
    assert 7 == registry.get_sample_value("shmloader_batches_total", {"loader": "valid"})


def test_loaders_of_both_kinds():
    """A loader of ours is taken as it is, a served one by a function, while both iterate."""
    with shmloader.DataLoader([torch.zeros(4)] * 12, batch_size=2, num_workers=2) as loader:
        served = functools.partial(shmloader.stats, loader)
        collector = LoaderCollector({"train": loader, "same": served})
        batches = iter(loader)
        held = [next(batches), next(batches)]
        found = samples(collector)

        for name in ("train", "same"):
            assert len(held) == found["shmloader_batches_total", ("loader", name)]
            assert len(held) == found["shmloader_next_seconds_count", ("loader", name)]
        del held, batches


def test_the_package_is_named(monkeypatch):
    """Without prometheus_client the import says what to install."""
    for name in [name for name in sys.modules if name.startswith("prometheus_client")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "shmloader.views.exporter")

    with pytest.raises(ImportError, match="pip install prometheus_client"):
        importlib.import_module("shmloader.views.exporter")

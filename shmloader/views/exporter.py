"""
What loaders did, as metrics for Prometheus: a collector for a registry of the user's own.

It starts no server and keeps no numbers: each scrape asks the loaders. Nothing else imports this
module, because nothing else needs `prometheus_client`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple, Protocol

from shmloader.stats.records import Stats, Times, WorkerStats

try:
    from prometheus_client.metrics_core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
    from prometheus_client.registry import Collector
except ModuleNotFoundError:
    raise ImportError(
        "shmloader.views.exporter needs prometheus_client, which is not installed: pip install "
        "prometheus_client",
        name="prometheus_client",
    ) from None

# Upper ends of the histograms' buckets, in seconds: three for each power of ten.
BUCKETS_S = (
    *(0.0001, 0.0002, 0.0005),
    *(0.001, 0.002, 0.005),
    *(0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0),
    *(10.0, 20.0, 50.0, 100.0),
)
# Of a loader's whole life; times on the processor are known of single epochs only.
_WORKER_STATES = tuple(
    each.name.removesuffix("_s")
    for each in fields(WorkerStats)
    if each.name.endswith("_s") and each.name not in ("cpu_s", "delayed_s")
)


class Counted(Protocol):
    """A loader that counts."""

    def stats(self) -> Stats:
        """What it has done so far."""


class LoaderCollector(Collector):
    """
    The metrics of some loaders; register it in a `prometheus_client.CollectorRegistry`.

    Args:
        loaders: A name for each, which is the label `loader`, and the loader or a function that
            returns its `Stats`, as `functools.partial(shmloader.stats, loader)` does for a served
            one. It is read at each scrape, so loaders may be added and removed; until then they
            are kept alive.
    """

    def __init__(self, loaders: Mapping[str, Counted | Callable[[], Stats]]) -> None:
        self._loaders = loaders

    def describe(self) -> list[Metric]:
        """Name the metrics to the registry; asks no loader."""
        return list(_metrics({}))

    def collect(self) -> Iterator[Metric]:
        """Ask each loader for its counts, on whatever thread the scrape runs."""
        return _metrics({name: _stats_of(each) for name, each in [*self._loaders.items()]})


def _stats_of(source: Counted | Callable[[], Stats]) -> Stats:
    return source() if callable(source) else source.stats()


class _Series(NamedTuple):
    """A metric, and how its samples are read of a loader's counts: labels' values and a number."""

    name: str
    text: str
    labels: tuple[str, ...]
    samples: Callable[[Stats], Iterable[tuple[tuple[str, ...], float]]]


def _number(name: str, text: str, field: str) -> _Series:
    """A metric that is one number of the counts."""
    return _Series(name, text, (), lambda stats: [((), getattr(stats, field))])


_COUNTERS = (
    _number("shmloader_batches", "Batches delivered.", "batches"),
    _number("shmloader_payload_bytes", "Bytes of the delivered batches' payload.", "bytes"),
    _number(
        "shmloader_wait_seconds",
        "Seconds the training loop was parked, waiting for a batch.",
        "wait_s",
    ),
    _Series(
        "shmloader_worker_seconds",
        "Seconds each worker was in each state.",
        ("worker", "state"),
        lambda stats: [
            ((str(number), state), getattr(worker, f"{state}_s"))
            for number, worker in enumerate(stats.workers)
            for state in _WORKER_STATES
        ],
    ),
    _Series(
        "shmloader_worker_batches",
        "Responses that each worker wrote.",
        ("worker",),
        lambda stats: [((str(n),), worker.batches) for n, worker in enumerate(stats.workers)],
    ),
    _Series(
        "shmloader_worker_payload_bytes",
        "Bytes of payload that each worker wrote.",
        ("worker",),
        lambda stats: [((str(n),), worker.bytes) for n, worker in enumerate(stats.workers)],
    ),
    _Series(
        "shmloader_spilled_batches",
        "Batches that were copied out of their slots.",
        ("reason",),
        lambda stats: _by_name(stats.spills),
    ),
    _number("shmloader_restarts", "Workers that died or hung and were replaced.", "restarts"),
    _number(
        "shmloader_replaced_workers",
        "Workers that were replaced because their memory grew.",
        "replaced",
    ),
    _number("shmloader_left_out_samples", "Samples that tolerant() skipped.", "left_out"),
    _Series(
        "shmloader_cache_looks",
        "Samples that all processes looked up in each cache of the dataset.",
        ("cache", "result"),
        lambda stats: [
            ((str(cache.number), result), number)
            for cache in stats.caches
            for result, number in (("hit", cache.hits), ("miss", cache.misses))
        ],
    ),
    _number(
        "shmloader_pickled_batches", "Batches with values that were pickled.", "pickled_batches"
    ),
    _number(
        "shmloader_pickled_bytes",
        "Bytes of pickles that were sent in addition to the tensors.",
        "pickled_bytes",
    ),
)
_GAUGES = (
    _Series(
        "shmloader_slots", "Slots in each state.", ("state",), lambda stats: _by_name(stats.slots)
    ),
    _number(
        "shmloader_resident_bytes", "Bytes of shared memory that have pages.", "resident_bytes"
    ),
    _Series(
        "shmloader_cache_entries",
        "Samples in each cache of the dataset.",
        ("cache",),
        lambda stats: [((str(cache.number),), cache.entries) for cache in stats.caches],
    ),
    _Series(
        "shmloader_cache_bytes",
        "Bytes of the samples in each cache of the dataset.",
        ("cache",),
        lambda stats: [((str(cache.number),), cache.bytes) for cache in stats.caches],
    ),
    _Series(
        "shmloader_epoch",
        "Number of the newest epoch, from 1.",
        (),
        lambda stats: [((), epoch.number) for epoch in stats.epochs[-1:]],
    ),
)
_HISTOGRAMS: tuple[tuple[str, str, Callable[[Stats], Times]], ...] = (
    ("shmloader_next_seconds", "How long each next() took, to 3 percent.", attrgetter("next")),
    ("shmloader_step_seconds", "How long each step took, to 3 percent.", attrgetter("step")),
)


def _by_name(counts: Mapping[str, int]) -> Iterator[tuple[tuple[str, ...], float]]:
    for name, number in counts.items():
        yield (name,), number


def _metrics(counted: Mapping[str, Stats]) -> Iterator[Metric]:
    """Make all metrics, with the samples of these loaders."""
    for kind, table in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES)):
        for series in table:
            labels = ("loader", *series.labels)
            family = kind(series.name, series.text, labels=labels)
            for loader, stats in counted.items():
                for values, number in series.samples(stats):
                    family.add_metric((loader, *values), number)
            yield family
    for name, text, times_of in _HISTOGRAMS:
        histogram = HistogramMetricFamily(name, text, labels=("loader",))
        for loader, stats in counted.items():
            times = times_of(stats)
            histogram.add_metric((loader,), buckets(times), times.total_s)
        yield histogram


def buckets(times: Times) -> list[tuple[str, float]]:
    """Count the durations up to each of the fixed ends, and all of them, as Prometheus does."""
    inside = [0] * (len(BUCKETS_S) + 1)
    for ns, number in times.counts:
        inside[bisect_left(BUCKETS_S, ns / 1e9)] += number
    ends = [*map(str, BUCKETS_S), "+Inf"]
    return list(zip(ends, accumulate(inside), strict=True))

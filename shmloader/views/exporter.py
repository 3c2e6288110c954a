"""
What loaders did, as metrics for Prometheus: a collector for a registry of the user's own.

It starts no server and keeps no numbers: each scrape asks the loaders. Nothing else imports this
module, because nothing else needs `prometheus_client`.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from itertools import accumulate
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
BUCKETS_S = (*(float(f"{digit}e{power}") for power in range(-4, 2) for digit in (1, 2, 5)), 100.0)
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
        loaders = [*self._loaders.items()]
        counted = {name: each() if callable(each) else each.stats() for name, each in loaders}
        return _metrics(counted)


class _Series(NamedTuple):
    """A metric: its name after "shmloader_", and the field that is its number, or its samples."""

    kind: type[CounterMetricFamily] | type[GaugeMetricFamily]
    name: str
    text: str
    samples: str | Callable[[Stats], Mapping[tuple[str, ...], float]]  # by the labels' values
    labels: tuple[str, ...] = ()


def _of_workers(field: str) -> Callable[[Stats], dict[tuple[str, ...], float]]:
    return lambda stats: {(str(n),): getattr(each, field) for n, each in enumerate(stats.workers)}


def _of_caches(field: str) -> Callable[[Stats], dict[tuple[str, ...], float]]:
    return lambda stats: {(str(each.number),): getattr(each, field) for each in stats.caches}


def _worker_seconds(stats: Stats) -> Mapping[tuple[str, ...], float]:
    return {
        (str(number), state): getattr(worker, f"{state}_s")
        for number, worker in enumerate(stats.workers)
        for state in _WORKER_STATES
    }


def _cache_looks(stats: Stats) -> Mapping[tuple[str, ...], float]:
    return {
        (str(each.number), result): number
        for each in stats.caches
        for result, number in (("hit", each.hits), ("miss", each.misses))
    }


_COUNTER, _GAUGE = CounterMetricFamily, GaugeMetricFamily
_SERIES = (
    _Series(_COUNTER, "batches", "Batches delivered.", "batches"),
    _Series(_COUNTER, "payload_bytes", "Bytes of the delivered batches' payload.", "bytes"),
    _Series(_COUNTER, "wait_seconds", "Seconds in which the loop waited for a batch.", "wait_s"),
    _Series(
        _COUNTER,
        "worker_seconds",
        "Seconds each worker was in each state.",
        _worker_seconds,
        ("worker", "state"),
    ),
    _Series(
        _COUNTER,
        "worker_batches",
        "Responses that each worker wrote.",
        _of_workers("batches"),
        ("worker",),
    ),
    _Series(
        _COUNTER,
        "worker_payload_bytes",
        "Bytes of payload that each worker wrote.",
        _of_workers("bytes"),
        ("worker",),
    ),
    _Series(
        _COUNTER,
        "spilled_batches",
        "Batches that were copied out of their slots.",
        lambda stats: {(reason,): count for reason, count in stats.spills.items()},
        ("reason",),
    ),
    _Series(_COUNTER, "restarts", "Workers that died or hung and were replaced.", "restarts"),
    _Series(_COUNTER, "replaced_workers", "Workers replaced because they grew.", "replaced"),
    _Series(_COUNTER, "left_out_samples", "Samples that tolerant() skipped.", "left_out"),
    _Series(
        _COUNTER,
        "cache_looks",
        "Samples that all processes looked up in each cache of the dataset.",
        _cache_looks,
        ("cache", "result"),
    ),
    _Series(_COUNTER, "pickled_batches", "Batches with pickled values.", "pickled_batches"),
    _Series(_COUNTER, "pickled_bytes", "Bytes of pickles in addition to tensors.", "pickled_bytes"),
    _Series(
        _GAUGE,
        "slots",
        "Slots in each state.",
        lambda stats: {(state,): count for state, count in stats.slots.items()},
        ("state",),
    ),
    _Series(_GAUGE, "resident_bytes", "Bytes of shared memory that have pages.", "resident_bytes"),
    _Series(_GAUGE, "cache_entries", "Samples in each cache.", _of_caches("entries"), ("cache",)),
    _Series(_GAUGE, "cache_bytes", "Bytes of the samples in it.", _of_caches("bytes"), ("cache",)),
    _Series(
        _GAUGE,
        "epoch",
        "Number of the newest epoch, from 1.",
        lambda stats: {(): stats.epochs[-1].number} if stats.epochs else {},
    ),
)


def _metrics(counted: Mapping[str, Stats]) -> Iterator[Metric]:
    """Make all metrics, with the samples of these loaders."""
    for kind, name, text, samples, labels in _SERIES:
        family = kind(f"shmloader_{name}", text, labels=("loader", *labels))
        for loader, stats in counted.items():
            found = {(): getattr(stats, samples)} if isinstance(samples, str) else samples(stats)
            for values, number in found.items():
                family.add_metric((loader, *values), number)
        yield family
    for name in ("next", "step"):
        text = f"How long each {name} took, to 3 percent."
        histogram = HistogramMetricFamily(f"shmloader_{name}_seconds", text, labels=("loader",))
        for loader, stats in counted.items():
            times: Times = getattr(stats, name)
            histogram.add_metric((loader,), buckets(times), times.total_s)
        yield histogram


def buckets(times: Times) -> list[tuple[str, float]]:
    """Count the durations up to each of the fixed ends, and all of them, as Prometheus does."""
    inside = [0] * (len(BUCKETS_S) + 1)
    for ns, number in times.counts:
        inside[bisect_left(BUCKETS_S, ns / 1e9)] += number
    ends = [*map(str, BUCKETS_S), "+Inf"]
    return list(zip(ends, accumulate(inside), strict=True))

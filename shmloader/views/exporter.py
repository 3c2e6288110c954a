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


class _Samples(NamedTuple):
    """The numbers of a metric: the names of their labels, and what reads them, by the labels."""

    labels: tuple[str, ...]
    read: Callable[[Stats], Mapping[tuple[str, ...], float]]


def _one(field: str) -> _Samples:
    return _Samples((), lambda stats: {(): getattr(stats, field)})


def _each(label: str, field: str) -> _Samples:
    return _Samples((label,), lambda stats: {(key,): n for key, n in getattr(stats, field).items()})


def _of_workers(field: str) -> _Samples:
    def read(stats: Stats) -> Mapping[tuple[str, ...], float]:
        return {(str(number),): getattr(each, field) for number, each in enumerate(stats.workers)}

    return _Samples(("worker",), read)


def _of_caches(field: str) -> _Samples:
    def read(stats: Stats) -> Mapping[tuple[str, ...], float]:
        return {(str(each.number),): getattr(each, field) for each in stats.caches}

    return _Samples(("cache",), read)


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


def _epoch(stats: Stats) -> Mapping[tuple[str, ...], float]:
    return {(): stats.epochs[-1].number} if stats.epochs else {}


_STATES = _Samples(("worker", "state"), _worker_seconds)
_LOOKS = _Samples(("cache", "result"), _cache_looks)
# By the name after "shmloader_": the text, and the numbers.
_COUNTERS = {
    "batches": ("Batches delivered.", _one("batches")),
    "payload_bytes": ("Bytes of the delivered batches' payload.", _one("bytes")),
    "wait_seconds": ("Seconds in which the loop waited for a batch.", _one("wait_s")),
    "worker_seconds": ("Seconds each worker was in each state.", _STATES),
    "worker_batches": ("Responses that each worker wrote.", _of_workers("batches")),
    "worker_payload_bytes": ("Bytes of payload that each worker wrote.", _of_workers("bytes")),
    "spilled_batches": ("Batches that were copied out of their slots.", _each("reason", "spills")),
    "device_batches": ("Batches for a device, by how they were copied.", _each("way", "copied")),
    "restarts": ("Workers that died or hung and were replaced.", _one("restarts")),
    "replaced_workers": ("Workers replaced because they grew.", _one("replaced")),
    "left_out_samples": ("Samples that tolerant() skipped.", _one("left_out")),
    "cache_looks": ("Samples that all processes looked up in each cache of the dataset.", _LOOKS),
    "pickled_batches": ("Batches with pickled values.", _one("pickled_batches")),
    "pickled_bytes": ("Bytes of pickles in addition to tensors.", _one("pickled_bytes")),
}
_GAUGES = {
    "slots": ("Slots in each state.", _each("state", "slots")),
    "resident_bytes": ("Bytes of shared memory that have pages.", _one("resident_bytes")),
    "locked_bytes": ("Bytes of them that are page-locked for devices.", _one("locked_bytes")),
    "cache_entries": ("Samples in each cache.", _of_caches("entries")),
    "cache_bytes": ("Bytes of the samples in it.", _of_caches("bytes")),
    "epoch": ("Number of the newest epoch, from 1.", _Samples((), _epoch)),
}


def _metrics(counted: Mapping[str, Stats]) -> Iterator[Metric]:
    """Make all metrics, with the samples of these loaders."""
    for kind, series in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES)):
        for name, (text, samples) in series.items():
            family = kind(f"shmloader_{name}", text, labels=("loader", *samples.labels))
            for loader, stats in counted.items():
                for values, number in samples.read(stats).items():
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

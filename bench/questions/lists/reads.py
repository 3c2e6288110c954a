"""Microseconds for one record, in one process that reads them in a shuffled order."""

import itertools
import pickle
import random
import time
from collections.abc import Iterator

import numpy

from bench.batches import difference
from bench.loads.records import STORES, annotations, paths

_COUNT = 100_000
_READS = 100_000
_TURNS = 5


def read_records(quick: bool) -> Iterator[dict]:
    """Yield a row for each kind of record."""
    count = _COUNT // 10 if quick else _COUNT
    for name, make in _KINDS.items():
        records = list(make(count))
        stores = {store: made(iter(records)) for store, made in STORES.items()}
        order = random.Random(0).choices(range(count), k=_READS // 10 if quick else _READS)
        best = dict.fromkeys(stores, float("inf"))
        for _ in range(_TURNS):  # in turns: a noisy second must not hit one of them alone
            for store, holder in stores.items():
                best[store] = min(best[store], _seconds(holder, order) / len(order))
        yield {
            "record": name,
            **{store: seconds * 1e6 for store, seconds in best.items()},
            "pickled_bytes": sum(len(pickle.dumps(each, -1)) for each in records) / count,
            "shared_bytes": stores["SharedList"].nbytes / count,
            "correct": all(
                difference(records[index], stores[store][index]) is None
                for store in stores
                for index in order[:1000]
            ),
        }


def _seconds(holder, order: list[int]) -> float:
    begin = time.perf_counter()
    for index in order:
        holder[index]
    return time.perf_counter() - begin


def _labelled(count: int) -> Iterator[tuple[str, int]]:
    return zip(paths(count), itertools.cycle(range(1000)), strict=False)


def _small(count: int) -> Iterator[dict]:
    for number, path in enumerate(paths(count)):
        yield {"path": path, "label": number % 1000, "box": [1.5, 2.5, number / 2, 7.0]}


def _arrays(count: int) -> Iterator[dict]:
    generator = numpy.random.default_rng(0)
    for number in range(count):
        yield {"boxes": generator.random((5, 4), numpy.float32), "id": number}


_KINDS = {
    "path": paths,
    "(path, label)": _labelled,
    "small dict": _small,
    "dict with an array (5, 4)": _arrays,
    "annotation": annotations,
}

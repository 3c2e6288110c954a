"""Microseconds for one annotation, in one process that reads them in a shuffled order."""

import random
import time
from collections.abc import Iterator

from bench.batches import difference
from bench.loads.records import STORES, annotations

_COUNT = 100_000
_TURNS = 5


def read_records(quick: bool) -> Iterator[dict]:
    """Yield a row for each store."""
    count = _COUNT // 10 if quick else _COUNT
    records = list(annotations(count))
    stores = {store: made(iter(records)) for store, made in STORES.items()}
    order = random.Random(0).choices(range(count), k=count)
    best = dict.fromkeys(stores, float("inf"))
    for _ in range(_TURNS):  # in turns: a noisy second must not hit one of them alone
        for store, holder in stores.items():
            best[store] = min(best[store], _seconds(holder, order) / count)
    for store, seconds in best.items():
        right = (difference(records[at], stores[store][at]) is None for at in order[:1000])
        yield {"annotations in": store, "µs a read": seconds * 1e6, "correct": all(right)}


def _seconds(holder, order: list[int]) -> float:
    begin = time.perf_counter()
    for index in order:
        holder[index]
    return time.perf_counter() - begin

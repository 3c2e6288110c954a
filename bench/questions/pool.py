"""
What a call in another process costs: `shmloader.Pool` beside other pools, and threads.

    python -m bench pool
    python -m bench pool --part calls --rounds 5

calls: with an argument of a few bytes or of 1 kB. results: arrays that each worker has made
beforehand. arguments: arrays that are sent. The caller's CPU is that of its whole process.
"""

import functools
import gc
import importlib
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy

from bench.driver import children, middles, missing, runnable
from bench.question import Options, Question, number, several
from shmloader.pool.executor import Pool

_WORKERS = 2
_FORK = multiprocessing.get_context("fork")
_POOLS: dict[str, Callable[[], Any]] = {
    "shmloader": lambda: Pool(_WORKERS, "fork"),
    "ProcessPoolExecutor": lambda: ProcessPoolExecutor(_WORKERS, _FORK),
    "multiprocessing.Pool": lambda: _FORK.Pool(_WORKERS),
    "loky": lambda: importlib.import_module("loky").ProcessPoolExecutor(_WORKERS),
    "mpire": lambda: importlib.import_module("mpire").WorkerPool(_WORKERS, start_method="fork"),
    "threads": lambda: ThreadPoolExecutor(_WORKERS),
}
_NEEDS = {"loky": "loky", "mpire": "mpire"}
_CHUNKS = {"submit": 1, "map": 1, "map, chunksize=64": 64}
_BY_IMAP = {"multiprocessing.Pool": "chunksize", "mpire": "chunk_size"}  # which have no futures
# Of each part, the bytes that are moved, and how the pool is asked.
_PARTS: dict[str, list[tuple[int, str]]] = {
    "calls": [*((0, way) for way in _CHUNKS), (1000, "map")],
    "results": [(1_200_000, "map"), (38_500_000, "map"), (154_000_000, "map")],
    "arguments": [(38_500_000, "map")],
}
_FIGURES = {"µs a call": "us", "caller's CPU, µs": "cpu_us"}


def nothing(given: Any) -> Any:
    """Return what came, or how long it is."""
    return len(given) if isinstance(given, bytes) else given


@functools.cache
def prepared(length: int) -> numpy.ndarray:
    """Return the array of this length that this process has made when it was first asked."""
    return numpy.arange(length, dtype=numpy.uint8)


def looked_at(array: Any) -> Any:
    """Read what says that an array came whole; anything else is looked at as it is."""
    if isinstance(array, numpy.ndarray):
        return len(array), int(array[0]), int(array[-1])
    return array


def _task(part: str, size: int, count: int) -> tuple[Callable, Sequence, Sequence]:
    """Return the function, its arguments, and what is to be seen of each result."""
    if part == "calls":
        given = [bytes(size)] * count if size else range(count)
        return nothing, given, list(map(nothing, given))
    seen = [(size, 0, (size - 1) % 256)] * count
    if part == "results":
        return prepared, [size] * count, seen
    return looked_at, [prepared(size)] * count, seen


def run(part: str, pool: str, way: str, size: int, count: int) -> dict:
    """Call so often, twice: the first time starts the workers."""
    with _POOLS[pool]() as opened:
        for calls in (min(count, 64), count):
            function, given, wanted = _task(part, size, calls)
            gc.collect()  # or a pool whose caller has imported more pays for it within its calls
            begin, cpu = time.perf_counter(), time.process_time()
            seen = list(map(looked_at, _asked(opened, pool, way, function, given)))
            took_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
    figures = {"us": 1e6 * took_s / count, "cpu_us": 1e6 * cpu_s / count}
    return {**figures, "correct": seen == wanted}


def _asked(opened: Any, pool: str, way: str, function: Callable, given: Iterable) -> Iterator[Any]:
    chunk = _CHUNKS[way]
    if way == "submit":
        return _submitted(opened, function, given)
    if pool in _BY_IMAP:
        return opened.imap(function, given, **{_BY_IMAP[pool]: chunk})
    return opened.map(function, given, chunksize=chunk)


def _submitted(opened: Any, function: Callable, given: Iterable) -> Iterator[Any]:
    futures: list[Any] = []
    for item in given:
        futures.append(opened.submit(function, item))
        if len(futures) == 4 * _WORKERS:
            yield futures.pop(0).result()
    while futures:
        yield futures.pop(0).result()


def _rows(part: str, options: Options) -> Iterator[dict]:
    pools = runnable(
        options.pool or _POOLS, lambda name: missing(_NEEDS.get(name, "torch")), "no pool is here"
    )
    for size, way in _PARTS[part]:
        count = max(20, int(5e8) // size) if size > 1000 else 4_000
        count = 20_000 if _CHUNKS[way] > 1 else count
        rows = {
            name: partial(run, part, name, way, size, count)
            for name in pools
            if way != "submit" or name not in _BY_IMAP
        }
        for name, runs in children(rows, options.rounds).items():
            said = f"{size / 1e6:g} MB" if size >= 1e5 else f"{size} bytes"
            yield {"of": said, "pool": name, "asked by": way, **middles(runs, _FIGURES)}


QUESTION = Question(
    {part: partial(_rows, part) for part in _PARTS}, {"pool": several(_POOLS), "rounds": number(3)}
)

"""
What a call in another process costs: `shmloader.Pool` beside other pools, and threads.

    python -m bench pool
    python -m bench pool --part calls --rounds 5

Three parts. calls: functions that do nothing, with an argument of a few bytes or of 1 kB. results:
arrays that each worker has made beforehand; the caller's CPU is that of its whole process.
arguments: arrays that are sent. Pools take turns,
each in a process of its own, and every result is looked at.
"""

import functools
import gc
import importlib.util
import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy

from bench.driver import children, middle, runnable
from bench.question import Options, Question, Records, number, several
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
_CALLS = {"submit": 1, "map": 1, "map, chunksize=64": 64}
_SIZES_MB = (1.2, 38.5, 154.0)

Ask = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]


@dataclass(frozen=True)
class Row:
    """
    What is run.

    Attributes:
        part: Of the question.
        pool: Whose.
        way: How it is asked, of `_CALLS`.
        bytes: Of an argument or a result.
        count: How many calls.
    """

    part: str
    pool: str
    way: str
    bytes: int
    count: int


def nothing(given: Any) -> Any:
    """Return what came, or that it came."""
    return len(given) if isinstance(given, bytes) else given


@functools.cache
def prepared(length: int) -> numpy.ndarray:
    """Return the array of this length that this worker has made when it was first asked."""
    return numpy.arange(length, dtype=numpy.uint8)


def looked_at(array: numpy.ndarray) -> tuple[int, int, int]:
    """Read what says that an array came whole."""
    return len(array), int(array[0]), int(array[-1])


def _ask(pool: Any, row: Row) -> Ask:
    chunk = _CALLS[row.way]
    if row.way == "submit":

        def by_submit(function: Any, items: Iterable[Any]) -> Iterator[Any]:
            futures: list[Any] = []
            for item in items:
                futures.append(pool.submit(function, item))
                if len(futures) == 4 * _WORKERS:
                    yield futures.pop(0).result()
            while futures:
                yield futures.pop(0).result()

        return by_submit
    if row.pool in ("multiprocessing.Pool", "mpire"):
        name = "chunksize" if row.pool != "mpire" else "chunk_size"
        return lambda function, items: pool.imap(function, items, **{name: chunk})
    return lambda function, items: pool.map(function, items, chunksize=chunk)


def run(row: Row) -> dict:
    """Call as often as the row says, twice: the first time starts the workers."""
    with _POOLS[row.pool]() as pool:
        ask = _ask(pool, row)
        for count in (min(row.count, 64), row.count):
            found = _run_once(ask, row, count)
    return found


def _run_once(ask: Ask, row: Row, count: int) -> dict:
    given: Iterable[Any] = range(count)
    function: Callable[[Any], Any] = nothing
    if row.part == "results":
        given, function = itertools.repeat(row.bytes, count), prepared
    elif row.part == "arguments":
        array = numpy.arange(row.bytes, dtype=numpy.uint8)
        given, function = itertools.repeat(array, count), looked_at
    elif row.part == "calls" and row.bytes:
        given = itertools.repeat(bytes(row.bytes), count)
    wanted = _wanted(row, count)
    gc.collect()  # or a pool whose caller has imported more pays for it within its calls
    begin, cpu = time.perf_counter(), time.process_time()
    correct, came = True, 0
    for result, right in zip(ask(function, given), wanted, strict=False):
        correct &= (looked_at(result) if row.part == "results" else result) == right
        came += 1
    took_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
    return {
        "s": took_s / count, "cpu_s": cpu_s / count, "correct": correct and came == count,
    }  # fmt: skip


def _wanted(row: Row, count: int) -> Iterable[Any]:
    if row.part == "calls":
        return itertools.repeat(row.bytes, count) if row.bytes else range(count)
    last = (row.bytes - 1) % 256
    return itertools.repeat((row.bytes, 0, last), count)


def _missing(name: str) -> str | None:
    is_here = name not in ("loky", "mpire") or importlib.util.find_spec(name)
    return None if is_here else f"pip install {name}"


def _rows(options: Options, part: str, ways: Iterable[str], sizes: Iterable[int]) -> Iterator[dict]:
    pools = runnable(options.pool or _POOLS, _missing, "no pool is installed")
    for size, way in itertools.product(sizes, ways):
        count = _count_of(part, size, way)
        rows = {
            name: Row(part, name, way, size, count)
            for name in pools
            if way != "submit" or name not in ("multiprocessing.Pool", "mpire")
        }
        for name, runs in children(rows, options.rounds).items():
            yield {
                "of": _said(size),
                "pool": name,
                "asked by": way,
                "µs a call": middle(runs, "s", 1e6),
                "caller's CPU, µs": middle(runs, "cpu_s", 1e6),
                "correct": all(each["correct"] for each in runs),
            }


def _count_of(part: str, size: int, way: str) -> int:
    if part == "calls":
        return 20_000 if way.endswith("64") else 4_000
    return max(20, int(2e9) // size // 4)


def _said(size: int) -> str:
    return f"{size / 1e6:g} MB" if size >= 1e5 else f"{size} bytes"


def _moved(part: str, sizes: Iterable[float]) -> Records:
    """Make the records of a part whose rows are sizes of what is moved."""
    lengths = [int(1e6 * each) for each in sizes]
    return lambda options: _rows(options, part, ("submit", "map"), lengths)


QUESTION = Question(
    {
        "calls": lambda options: _rows(options, "calls", _CALLS, (0, 1000)),
        "results": _moved("results", _SIZES_MB),
        "arguments": _moved("arguments", _SIZES_MB[1:2]),
    },
    {"pool": several(_POOLS), "rounds": number(3)},
)

"""Shuffled reads in one process: annotations in memory, and files beside one of their records."""

import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.batches import are_equal
from bench.loads.records import STORES, annotations
from bench.question import Options
from shmloader import SharedList

_TURNS = 5
_LENGTHS, _IN_A_FOLDER = (10_000, 90_000), 500


def of_records(options: Options) -> Iterator[dict]:
    """Yield a row for each store."""
    count = options.records
    records = list(annotations(count))
    stores = {store: made(iter(records)) for store, made in STORES.items()}
    order = random.Random(0).choices(range(count), k=count)
    best = dict.fromkeys(stores, float("inf"))
    for _ in range(_TURNS):  # in turns: a noisy second must not hit one of them alone
        for store, holder in stores.items():
            best[store] = min(best[store], _seconds(holder, order) / count)
    for store, seconds in best.items():
        right = (are_equal(records[at], stores[store][at]) for at in order[:1000])
        yield {"annotations in": store, "µs a read": seconds * 1e6, "correct": all(right)}


def _seconds(holder, order: list[int]) -> float:
    begin = time.perf_counter()
    for index in order:
        holder[index]
    return time.perf_counter() - begin


def of_files(options: Options) -> Iterator[dict]:
    """Yield a row for files that are not in the page cache, and one for files that are."""
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        folder, packed = Path(place, "files"), Path(place, "packed")
        files = _make(folder, options.files)
        SharedList.pack_folder(folder, packed).close()
        os.sync()
        contents = [file.read_bytes() for file in files]
        for cache in ("cold", "warm"):
            yield _row(cache, files, packed, contents)


def _make(folder: Path, count: int) -> list[Path]:
    chance = random.Random(0)
    files = []
    for number in range(count):
        file = folder / f"{number // _IN_A_FOLDER:04d}" / f"{number:06d}.bin"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(chance.randbytes(chance.randint(*_LENGTHS)))
        files.append(file)
    return files


def _row(cache: str, files: list[Path], packed: Path, contents: list[bytes]) -> dict:
    order = random.Random(1).sample(range(len(files)), len(files))
    forget = _forget if cache == "cold" else len
    forget([*files, packed])
    files_s, files_right = _timed(lambda index: files[index].read_bytes(), order, contents)
    forget([packed])
    with SharedList.from_file(packed) as records:
        list_s, list_right = _timed(lambda index: records[index][1], order, contents)
    return {
        "cache": cache,
        "files, MB": sum(map(len, contents)) / 1e6,
        "single files, µs": files_s / len(order) * 1e6,
        "SharedList, µs": list_s / len(order) * 1e6,
        "times faster": files_s / list_s,
        "correct": files_right and list_right,
    }


def _timed(
    read: Callable[[int], bytes], order: list[int], contents: list[bytes]
) -> tuple[float, bool]:
    seconds, right = 0.0, True
    for index in order:
        begin = time.perf_counter()
        content = read(index)
        seconds += time.perf_counter() - begin
        right = right and content == contents[index]
    return seconds, right


def _forget(files: list[Path]) -> None:
    """Have the kernel drop what it has of these files; it may keep some."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)

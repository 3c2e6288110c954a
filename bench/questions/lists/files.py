"""A folder of small files, read one by one in a shuffled order, beside a file of their records."""

import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from shmloader import SharedList

_COUNT, _LENGTHS = 10_000, (10_000, 90_000)
_IN_A_FOLDER = 500


def file_records(folder: str | None, quick: bool) -> Iterator[dict]:
    """Yield a row for files that are in the page cache, and one for files that are not."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        files = _make(Path(place, "files"), _COUNT // 10 if quick else _COUNT)
        packed = Path(place, "packed")
        SharedList.pack_folder(Path(place, "files"), packed).close()
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
    if cache == "cold":
        _forget([*files, packed])
    files_s, files_right = _timed(lambda index: files[index].read_bytes(), order, contents)
    if cache == "cold":
        _forget([packed])
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

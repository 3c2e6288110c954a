"""The segments that a process has open, and what they say at this moment."""

import contextlib
import functools
import os
import time
from collections.abc import Iterator

from shmloader.cli.attach.process_facts import RunningProcess
from shmloader.stats.layout import Layout, Read
from shmloader.views import live

# What links of descriptors say; the magic number decides which of these files are segments.
_MEMFD = "/memfd:shmloader"
_POSIX, _UNLINKED = "/dev/shm/", " (deleted)"


@functools.cache
def layout() -> Layout:
    """Returns where the fields of a segment are, in segments of this package's version."""
    from shmloader.core import view_layout  # only now: it imports torch, which takes seconds

    return Layout(view_layout())


def look_into(process: RunningProcess) -> tuple[tuple[live.LiveLoader, ...], tuple[str, ...]]:
    """Read all segments of a process: what its loaders do, and in sentences what is not read."""
    loaders, unread = [], []
    for read, total_bytes in _segments_of(process.pid):
        try:
            plate = live.read_plate(read, total_bytes, layout())
        except live.NoSegment:
            continue
        except live.NotReadable as error:
            unread.append(str(error))
            continue
        # Not a worker's, a child's or a later process's; a closed one is open for batches alone.
        is_own = plate.owner_pid == process.pid and plate.owner_start in (0, process.start)
        if is_own and plate.state != "closed":
            loaders.append(live.read_loader(read, plate, layout(), time.monotonic_ns()))
    # Segments that wait for the next epoch of a loader that has one which runs are left out.
    running = {loader.loader for loader in loaders if loader.state == "live"}
    shown = [each for each in loaders if each.state == "live" or each.loader not in running]
    return tuple(sorted(shown, key=lambda loader: loader.loader)), tuple(unread)


def _segments_of(pid: int) -> Iterator[tuple[Read, int]]:
    """Open the files of a process that may be segments, one after the other; with their sizes."""
    seen = set()
    folder = f"/proc/{pid}/fd"
    for name in sorted(os.listdir(folder), key=int):
        path = f"{folder}/{name}"
        # It may be closed meanwhile, or its number may be another file's.
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(path)
            is_unlinked = target.startswith(_POSIX) and target.endswith(_UNLINKED)
            if not is_unlinked and not target.startswith(_MEMFD):
                continue
            number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                file = os.fstat(number)
                if (file.st_dev, file.st_ino) not in seen:
                    seen.add((file.st_dev, file.st_ino))
                    yield functools.partial(os.pread, number), file.st_size
            finally:
                os.close(number)

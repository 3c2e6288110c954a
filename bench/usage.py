"""
What a run costs the machine, read from Linux: CPU, page faults, switches, descriptors, memory.

Counters are totals since the process began; the caller subtracts. A worker that is reaped moves
from its own clock to the trainer's account of its children, so the sum of both never loses it.
"""

import os
import re
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

_SHARED = ("/memfd:", "/dev/shm/", "/SYSV", "/dev/zero")
_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ (\d+) *(.*)$")


def descendants(pid: int) -> list[int]:
    """List the processes below `pid`, nearest first."""
    found = []
    for child in children(pid):
        found += [child, *descendants(child)]
    return found


def children(pid: int) -> list[int]:
    """List the processes that `pid` started and that still run or wait to be reaped."""
    threads = _listing(Path(f"/proc/{pid}/task"))
    return [int(child) for each in threads for child in _read(each / "children").split()]


def process_ids() -> list[int]:
    """List this process and its workers."""
    return [os.getpid(), *descendants(os.getpid())]


def totals() -> dict[str, float]:
    """Return CPU seconds, page faults and voluntary switches so far, trainer and workers apart."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    reaped = resource.getrusage(resource.RUSAGE_CHILDREN)
    workers = descendants(os.getpid())
    return {
        "trainer_cpu_s": time.process_time(),
        "worker_cpu_s": reaped.ru_utime + reaped.ru_stime + sum(map(cpu_s, workers)),
        "trainer_minor_faults": own.ru_minflt,
        "trainer_major_faults": own.ru_majflt,
        "worker_minor_faults": reaped.ru_minflt + sum(map(_minor_faults, workers)),
        "trainer_voluntary_switches": own.ru_nvcsw,
    }


def resources() -> dict[str, float]:
    """
    Return what trainer and workers hold at this moment.

    Returns:
        Open descriptors, shared memory in MB (also the part that is in flight and mapped nowhere),
        private memory in MB (a page that processes share after a fork counts once).
    """
    pids = process_ids()
    return {
        "descriptors": sum(map(count_descriptors, pids)),
        "shared_mb": shared_bytes(pids) / 1e6,
        "private_mb": private_mb(pids),
    }


def all_mb(pids: list[int] | None = None) -> float:
    """Sum the memory of these processes, or of all: private pages and shared ones, each once."""
    pids = pids or process_ids()
    return shared_bytes(pids) / 1e6 + private_mb(pids)


def private_mb(pids: list[int]) -> float:
    """Sum the private pages of processes; those that they share after a fork count once."""
    return sum(memory_bytes(pid)["Pss_Anon"] for pid in pids) / 1e6


def cpu_s(pid: int) -> float:
    """Read another process's CPU clock: its id is made of the pid, to the nanosecond."""
    return _if_there(lambda: time.clock_gettime((~pid << 3) | 2), 0.0)


def _minor_faults(pid: int) -> int:
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return int(fields[7]) if fields else 0


def memory_bytes(pid: int) -> Counter[str]:
    """Read the kernel's account of a process's memory, by its names such as "Pss_Anon"."""
    lines = re.findall(r"^(\w+): +(\d+) kB", _read(Path(f"/proc/{pid}/smaps_rollup")), re.MULTILINE)
    return Counter({name: int(kilobytes) * 1024 for name, kilobytes in lines})


def count_descriptors(pid: int) -> int:
    """Count a process's open descriptors; 0 if it is gone."""
    return len(_listing(Path(f"/proc/{pid}/fd")))


def shared_bytes(pids: list[int]) -> int:
    """Sum over shared objects, each once: its blocks if it can be opened, otherwise its Rss."""
    sizes = {}
    for pid in pids:
        for inode, size in _mapped_objects(pid):
            sizes[inode] = max(size, sizes.get(inode, 0))
    for pid in pids:
        sizes.update(_sizes(_open_objects(pid)))
        sizes.update(_sizes(Path("/dev/shm").glob(f"torch_{pid}_*")))
    return sum(sizes.values())


def _mapped_objects(pid: int) -> list[tuple[int, int]]:
    found, inode = {}, None
    for line in _read(Path(f"/proc/{pid}/smaps")).splitlines():
        header = _MAPPING.match(line)
        if header:
            inode = int(header[1]) if header[2].startswith(_SHARED) else None
        elif inode and line.startswith("Rss:"):
            found[inode] = found.get(inode, 0) + int(line.split()[1]) * 1024
    return list(found.items())


def _open_objects(pid: int) -> list[Path]:
    paths = _listing(Path(f"/proc/{pid}/fd"))
    return [path for path in paths if str(_if_there(path.readlink, "")).startswith(_SHARED)]


def _sizes(paths: Iterable[Path]) -> dict[int, int]:
    found = [_if_there(path.stat, None) for path in paths]
    return {status.st_ino: status.st_blocks * 512 for status in found if status}


def _listing(folder: Path) -> list[Path]:
    return _if_there(lambda: list(folder.iterdir()), [])


def _read(path: Path) -> str:
    return _if_there(lambda: path.read_text(errors="replace"), "")


def _if_there(look: Callable[[], Any], otherwise: Any) -> Any:
    """Look at what may be closed, unlinked or ended meanwhile."""
    try:
        return look()
    except OSError:
        return otherwise

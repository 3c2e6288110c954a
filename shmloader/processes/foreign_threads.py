"""
Threads of native libraries in a process that forks workers, in which these threads are missing.

There such a library still counts on them: a worker that calls it waits for ever. They are known by
the names that libraries give them, and those of OpenMP by the file whose code they wait in. Nothing
is said of all others, such as torch's own, which are called as the program is: most do no harm.
"""

import os
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from shmloader.processes import proc

# The beginning of a thread's name, of which the kernel keeps 15 bytes -> what it belongs to.
_LIBRARIES = {
    "polars-": "polars",
    "rayon": "rayon",
    "tokio-r": "tokio",
    "ts_pool_": "tensorstore",
    "grpc_global_tim": "gRPC",
    "grpcpp_": "gRPC",
    "event_engine": "gRPC",
}
_OPENMP = "libgomp"
_OF_TORCH = ("/torch/lib/", "/torch.libs/")
_OF_RAY = "_raylet"  # has threads of gRPC that workers do not need
_SHOWN = 2  # names of threads

_told: set[str] = set()  # libraries that this process was warned of
_looked_at: list[str] = []  # the threads at the last look


class _Code(NamedTuple):
    """A part of a process's memory that has code of a file."""

    begin: int
    end: int
    file: str


def news() -> str:
    """Say what is wrong with a fork of workers now, once for each library; "": nothing new is."""
    try:
        threads = os.listdir("/proc/self/task")
    except OSError:
        return ""
    if threads == _looked_at:
        return ""
    _looked_at[:] = threads
    found = {library: names for library, names in look().items() if library not in _told}
    _told.update(found)
    return _say(found) if found else ""


def suspicion() -> str:
    """Say why a forked worker may hang, as one more sentence; "": that is not known."""
    found = look()
    return f". W{_say(found)[1:]}" if found else ""


def _say(found: dict[str, list[str]]) -> str:
    return f"workers are forked from this process, which has {named(found)}: {outcome(found)}"


def named(found: dict[str, list[str]]) -> str:
    """Name threads, by library."""
    return " and ".join(f"threads of {library} ({_list(all_)})" for library, all_ in found.items())


def outcome(found: dict[str, list[str]]) -> str:
    """Say what comes of them, and what to do."""
    return (
        f"a worker lacks them, and hangs when it uses {' or '.join(found)}. Pass "
        "multiprocessing_context='forkserver' (to a Pool mp_context), which forks from a process "
        "without them"
    )


def _list(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def look(process: int | str = "self") -> dict[str, list[str]]:
    """List by library the threads of a process that workers forked from it would miss."""
    code = _code_of(process)
    runtimes = _runtimes(code)
    found = defaultdict(list)
    try:
        threads = list(proc.names_of_threads(process))
    except OSError:  # it has ended, or there is no /proc
        return {}
    for thread, name in threads:
        library = next((of for begin, of in _LIBRARIES.items() if name.startswith(begin)), "")
        if not library and runtimes:
            at = _place(f"/proc/{process}/task/{thread}/syscall")
            library = next((each.file for each in runtimes if each.begin <= at < each.end), "")
        if library:
            found[library].append(name)
    if any(_OF_RAY in each.file for each in code):
        found.pop("gRPC", None)
    return dict(found)


def _code_of(process: int | str) -> list[_Code]:
    try:
        with open(f"/proc/{process}/maps", encoding="utf-8", errors="replace") as file:
            lines = [line.split(maxsplit=5) for line in file]
    except OSError:
        return []
    of_files = [line for line in lines if len(line) == 6 and "x" in line[1]]
    return [_Code(*_numbers(line[0]), line[5].strip()) for line in of_files]


def _numbers(text: str) -> tuple[int, int]:
    begin, end = text.split("-")
    return int(begin, 16), int(end, 16)


def _runtimes(code: Sequence[_Code]) -> list[_Code]:
    """List OpenMP's code of other libraries, with their names for files; none if torch uses it."""
    runtimes = [each for each in code if os.path.basename(each.file).startswith(_OPENMP)]
    others = [each for each in runtimes if not any(part in each.file for part in _OF_TORCH)]
    return [each._replace(file=_owner(each.file)) for each in others if others != runtimes]


def _owner(file: str) -> str:
    """Name the OpenMP of a wheel by its folder of libraries, as in scikit_learn.libs."""
    folder = os.path.basename(os.path.dirname(file))
    return f"OpenMP in {folder.removesuffix('.libs') if folder.endswith('.libs') else file}"


def _place(syscall: str) -> int:
    """Read where a thread waits; -1 if it runs, or the kernel does not say."""
    try:
        with open(syscall) as file:
            return int(file.read().split()[-1], 16)
    except (OSError, ValueError, IndexError):
        return -1

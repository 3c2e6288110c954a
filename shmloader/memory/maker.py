"""Which process made a piece of shared memory, as viewers are told."""

import os

from shmloader.memory import groups


def this_process() -> dict[str, int]:
    """Returns `owner_pid`, and `owner_start`: when it began, in clock ticks after boot, or 0."""
    # A pid may come again.
    fields = groups.read_text("/proc/self/stat").rpartition(")")[2].split()
    return {"owner_pid": os.getpid(), "owner_start": int(fields[19]) if len(fields) > 19 else 0}

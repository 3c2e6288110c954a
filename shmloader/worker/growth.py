"""
How much private memory a worker has taken since it started: `worker_bytes`.

Counted are dirty pages of private mappings: what it allocated, and what it inherited by a fork and
has written to since, such as reference counts. Pages of slots and caches do not count, also while
no other process has mapped them; so the kernel's sum over all mappings is no measure.
"""

import contextlib
import time

from shmloader.memory import groups

GREW = 83  # the exit code of a worker that leaves because of it

_EVERY_S = 1.0  # between two looks, which take 10 ms for a worker with torch


class Growth:
    """
    Watches the memory of this process.

    Attributes:
        taken_bytes: Since the start, as of the last look.
        batches: Answered since the start.
    """

    def __init__(self, most_bytes: int) -> None:
        """Begin to count; most_bytes: how much more is too much."""
        self._most_bytes = most_bytes
        self._first_bytes = private_bytes()
        self._looked_at = time.monotonic()
        self.taken_bytes = 0
        self.batches = 0

    def is_too_much(self) -> bool:
        """Count a batch, and look now and then. Returns True if the process should end."""
        self.batches += 1
        now = time.monotonic()
        if now - self._looked_at >= _EVERY_S:
            self._looked_at = now
            self.taken_bytes = private_bytes() - self._first_bytes
        return self.taken_bytes > self._most_bytes


def private_bytes() -> int:
    """Sum the dirty pages of this process's private mappings; 0 if the system does not say."""
    total = 0
    is_private = False
    with contextlib.suppress(OSError), open(f"{groups.PROC}/self/smaps", "rb") as lines:
        for line in lines:
            if line.startswith(b"Private_Dirty:"):
                total += int(line.split()[1]) * 1024 if is_private else 0
            elif line[0] in b"0123456789abcdef":  # a mapping: addresses, then "rw-p" or "rw-s"
                is_private = line.split(None, 2)[1].endswith(b"p")
    return total

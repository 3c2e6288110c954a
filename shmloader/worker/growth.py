"""
How much private memory a worker has taken since it started: `worker_bytes`.

Counted are dirty pages of private mappings: what it allocated, and what it inherited by a fork and
has written to since, such as reference counts. Pages of slots and caches do not count, also while
no other process has mapped them; so the kernel's sum over all mappings is no measure.

To count them the kernel walks all pages, which takes 10 ms for a worker with torch and 40 ms for
each further GB. Anonymous pages it has at hand, and these give bounds once a second: what they grew
since the start is dirty and private, and nothing else of them is but what was so at the start, and
inherited pages. Only between these bounds is there something to count.
"""

import contextlib
import mmap
import time

from shmloader.memory import groups

_EVERY_S = 1.0
_SHARE = 50  # a count may take this part of the time at most, unless there is reason for it


class Growth:
    """Watches the memory of this process."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.taken_bytes = 0  # since the start, as of the last look
        self._first_bytes = 0
        self._first_bytes = self._count()
        self._first_anonymous_bytes = self._anonymous_bytes
        self.taken_bytes = 0
        self._looked_at = time.monotonic()

    def is_too_much(self) -> bool:
        """Look now and then. Returns True if the process should end."""
        now = time.monotonic()
        if now - self._looked_at >= _EVERY_S:
            self._looked_at = now
            self._look(now)
        return self.taken_bytes > self._most_bytes

    def _look(self, now: float) -> None:
        anonymous = anonymous_bytes()
        at_least = anonymous - self._first_anonymous_bytes
        if at_least > self._most_bytes:
            self.taken_bytes = at_least
        elif anonymous - self._first_bytes > self._most_bytes:
            more = anonymous - self._anonymous_bytes
            if self.taken_bytes + more > self._most_bytes or now >= self._due_at:
                self._count()

    def _count(self) -> int:
        begin = time.monotonic()
        total = private_bytes()
        self._anonymous_bytes = anonymous_bytes()
        now = time.monotonic()
        self._due_at = now + _SHARE * (now - begin)
        self.taken_bytes = total - self._first_bytes
        return total


def private_bytes() -> int:
    """
    Sum the dirty pages of this process's private mappings; 0 if the system does not say.

    Of a mapped file only those that were written to, and so are anonymous: a page of a `SharedList`
    that no other process has mapped is dirty too.
    """
    total = dirty = 0
    is_private = False
    with contextlib.suppress(OSError), open(f"{groups.PROC}/self/smaps", "rb") as lines:
        for line in lines:
            if line.startswith(b"Private_Dirty:"):
                dirty = int(line.split()[1])
            elif line.startswith(b"Anonymous:"):  # it comes later
                total += min(dirty, int(line.split()[1])) * 1024 if is_private else 0
            elif line[0] in b"0123456789abcdef":  # a mapping: addresses, then "rw-p" or "rw-s"
                is_private = line.split(None, 2)[1].endswith(b"p")
    return total


def anonymous_bytes() -> int:
    """What this process has of anonymous pages, its own and inherited ones; 0 if not known."""
    counts = groups.read_text(f"{groups.PROC}/self/statm").split()
    return (int(counts[1]) - int(counts[2])) * mmap.PAGESIZE if len(counts) > 2 else 0

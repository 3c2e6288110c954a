"""
What this process may add before the kernel kills: pages of a segment, or private memory.

Workers look for their own room (core/room.pyx). Here a look costs the training thread 0.2 ms, so
there is none while little was added since the last one, as a part of what was left then.
"""

import math
import os
import time

from shmloader.memory import limits, policy


class Headroom:
    """The memory that is left to this process, as far as it was looked at."""

    def __init__(self) -> None:
        self._unseen_bytes = 0.0  # may still be added without a look
        self._seen_s = -math.inf
        self._found: limits.Available | None = None

    def has(self, added_bytes: int, reserve_bytes: int = 0) -> bool:
        """
        Returns True if so many bytes may be added now; the caller adds them then.

        Args:
            reserve_bytes: What must be left to others, if there is a look.
        """
        is_fresh = time.monotonic() - self._seen_s < policy.UNSEEN_S
        if is_fresh and added_bytes <= self._unseen_bytes:
            self._unseen_bytes -= added_bytes
            return True
        self._seen_s = time.monotonic()
        self._found = limits.available()
        left_bytes = math.inf if self._found is None else self._found.bytes - added_bytes
        self._unseen_bytes = max(0, left_bytes - reserve_bytes) // policy.UNSEEN_PART
        return left_bytes >= reserve_bytes

    def left(self) -> str:
        """Say what the last look found, for an error."""
        if self._found is None:
            return "too few MB are left"
        left_mb = self._found.bytes / 1e6
        return f"{left_mb:.1f} MB are left to process {os.getpid()} {self._found.where}"

"""How much memory there is: of the machine, and of this process's control groups."""

import math
import os
import time
from typing import NamedTuple

from shmloader.memory import groups, policy

_RANKS = "LOCAL_WORLD_SIZE"


def ranks() -> int:
    """How many ranks of a training share this machine, as torchrun and Ray Train tell each."""
    told = os.environ.get(_RANKS)
    return max(1, int(told)) if told and told.isdecimal() else 1


class Available(NamedTuple):
    """What this process could take now, and what bounds it, in words for an error."""

    bytes: int
    where: str


def _meminfo() -> dict[str, int]:
    """Read the machine's figures, in bytes."""
    fields = groups.read_fields(f"{groups.PROC}/meminfo")
    return {name.rstrip(":"): kilobytes * 1024 for name, kilobytes in fields.items()}


def total_bytes() -> int | None:
    """The memory that this process should ever have, in bytes; None if the system does not say."""
    limits = [_meminfo().get("MemTotal"), *(group.total_bytes for group in groups.groups())]
    return min((limit for limit in limits if limit is not None), default=None)


def available() -> Available | None:
    """
    What the kernel would give this process now; None if the system does not say.

    Swap space counts, as it does for the kernel: pages that others do not use go there first.
    """
    machine = _meminfo()
    swap = machine.get("SwapFree", 0)
    found = []
    if "MemAvailable" in machine:
        found.append(Available(machine["MemAvailable"] + swap, "on this machine"))
    for group in groups.groups():
        swap = group.swap_left(swap)
        limit = group.limit_bytes
        if limit is not None:
            where = f"below the limit of {limit / 1e6:.1f} MB of its control group {group.folder}"
            found.append(Available(group.left_bytes(limit, swap), where))
    return min(found, default=None)


def available_bytes() -> int | None:
    """The memory that this process could take now, in bytes; None if the system does not say."""
    least = available()
    return None if least is None else least.bytes


class Headroom:
    """
    What this process may add before the kernel kills: pages of a segment, or private memory.

    Workers look for their own room (core/room.pyx). Here a look costs the training thread 0.2 ms,
    so there is none while little was added since the last one, as a part of what was left then.
    """

    def __init__(self) -> None:
        self._unseen_bytes = 0.0  # may still be added without a look
        self._seen_s = -math.inf
        self._found: Available | None = None

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
        self._found = available()
        left_bytes = math.inf if self._found is None else self._found.bytes - added_bytes
        self._unseen_bytes = max(0, left_bytes - reserve_bytes) // policy.UNSEEN_PART
        return left_bytes >= reserve_bytes

    def left(self) -> str:
        """Say what the last look found, for an error."""
        if self._found is None:
            return "too few MB are left"
        left_mb = self._found.bytes / 1e6
        return f"{left_mb:.1f} MB are left to process {os.getpid()} {self._found.where}"

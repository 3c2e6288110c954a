"""
The memory control groups of this process, of version 1 or 2: their limits, and what they have left.

Each group counts its own processes and those of the groups below it, so every group above this
process may be the one that runs out first. What a group has left is what the kernel would give
before it kills: besides what was never used, clean file pages, reclaimable slab, and swap space.
Shared memory is on the kernel's lists of anonymous pages, so it is never counted as a file's.
"""

import functools
import os
from collections.abc import Iterator
from typing import NamedTuple

PROC = "/proc"
_UNLIMITED = 1 << 60  # groups of version 1 write "no limit" as a number near 2^63
_READ_MAX = 1 << 20


def read_text(path: str) -> str:
    """Read one of the kernel's files; nothing if it is not there. A tenth of what pathlib takes."""
    opened: list[int] = []
    try:
        # One call: an interrupt before a line of Python's own would lose the descriptor, which no
        # process that is started inherits.
        opened.extend(map(os.open, [path], [os.O_RDONLY]))
        return os.read(opened[0], _READ_MAX).decode(errors="replace")
    except OSError:
        return ""  # perhaps the group was removed since
    finally:
        if opened:
            os.close(opened[0])


def read_fields(path: str) -> dict[str, int]:
    """Read a file of "name number" lines; a unit after the number is not looked at."""
    lines = (line.split() for line in read_text(path).splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


class Group:
    """
    One memory control group of version 2, by its folder.

    Nothing is kept of what its files say: limits may be changed while they apply.
    """

    _limit = "memory.max"

    def __init__(self, folder: str) -> None:
        self.folder = folder

    @property
    def total_bytes(self) -> int | None:
        """What its processes should ever use, in bytes; None if there is no limit."""
        # Beyond memory.high processes are slowed down, not killed: a budget, but no refusal.
        limits = (self.limit_bytes, self._number("memory.high"))
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def limit_bytes(self) -> int | None:
        """What its processes are killed for exceeding, in bytes; None if there is no limit."""
        return self._number(self._limit)

    def left_bytes(self, limit_bytes: int, swap_bytes: int) -> int:
        """Count what it has left below its limit, if the machine has this much swap space left."""
        used = self._number("memory.current") or 0
        fields = read_fields(f"{self.folder}/memory.stat")
        given_up = _clean_file_bytes(fields, "", "file_") + fields.get("slab_reclaimable", 0)
        return limit_bytes - used + given_up + swap_bytes

    def swap_left(self, swap_bytes: int) -> int:
        """Count what is left of so much swap space for the processes of this group, in bytes."""
        limit = self._number("memory.swap.max")
        if swap_bytes == 0 or limit is None:
            return swap_bytes
        left = limit - (self._number("memory.swap.current") or 0)
        return max(0, min(swap_bytes, left))

    def _number(self, name: str) -> int | None:
        text = read_text(f"{self.folder}/{name}").strip()
        return int(text) if text.isdigit() and int(text) < _UNLIMITED else None


class _GroupOfVersionOne(Group):
    """The same of version 1, which has no files of the other names."""

    _limit = "memory.limit_in_bytes"

    def left_bytes(self, limit_bytes: int, swap_bytes: int) -> int:
        fields = read_fields(f"{self.folder}/memory.stat")
        # Before Linux 5.11 a group may count itself alone; then both sets of fields say the same.
        given_up = _clean_file_bytes(fields, "total_" if "total_cache" in fields else "", "")
        left = limit_bytes - (self._number("memory.usage_in_bytes") or 0) + given_up
        if self._number("memory.swappiness") == 0:
            return left
        # A second limit bounds memory and swap space together.
        both = self._number("memory.memsw.limit_in_bytes")
        if both is None:
            return left + swap_bytes
        used = self._number("memory.memsw.usage_in_bytes") or 0
        return min(left + swap_bytes, both - used + given_up)

    @property
    def counts_children(self) -> bool:
        """True if the groups below are within this one's limit, as they always are now."""
        return self._number("memory.use_hierarchy") != 0


def _clean_file_bytes(fields: dict[str, int], prefix: str, unclean: str) -> int:
    """
    Count the file pages that the kernel drops when it needs memory, in bytes.

    Pages that were used more than once are dropped too, only later. Pages that are not written to
    their file yet are not counted: they are clean within seconds.
    """
    files = fields.get(f"{prefix}inactive_file", 0) + fields.get(f"{prefix}active_file", 0)
    for name in ("dirty", "writeback"):
        files -= fields.get(f"{prefix}{unclean}{name}", 0)
    return max(0, files)


def groups() -> list[Group]:
    """List the groups of this process, the outermost first; both versions may be in use."""
    return _groups(PROC, read_text(f"{PROC}/self/cgroup"))


def folders(controller: str) -> list[str]:
    """
    List the folders of this process's groups for a controller such as "cpu", the outermost first.

    Those of version 2 are there for any controller, and may have no files of this one.
    """
    found = _find(PROC, read_text(f"{PROC}/self/cgroup"), controller)
    return [folder for mount, name in found for folder in mount.folders(name)]


@functools.lru_cache(maxsize=4)
def _groups(proc: str, membership: str) -> list[Group]:
    """List the groups that a membership file names; cached, for it hardly ever changes."""
    found = _find(proc, membership, "memory")
    return [group for mount, name in found for group in mount.groups(name)]


def _find(proc: str, membership: str, controller: str) -> list[tuple["_Mount", str]]:
    """Find where a controller's hierarchies are mounted, each with the name of the group in it."""
    found: list[tuple[_Mount, str]] = []
    mounts = list(_mounts(f"{proc}/self/mountinfo"))
    for line in membership.splitlines():
        number, controllers, name = line.split(":", 2)
        for mount in mounts:
            if mount.is_of(number, controllers, controller):
                found.append((mount, name))
                break
    return found


class _Mount(NamedTuple):
    """Where a hierarchy of groups is mounted: point is the folder of the group named root."""

    kind: str
    root: str
    point: str
    options: str

    def is_of(self, number: str, controllers: str, controller: str) -> bool:
        """Returns True if one line of /proc/self/cgroup is of it, and it has the controller."""
        if self.kind == "cgroup2":
            return number == "0"
        return controller in controllers.split(",") and controller in self.options.split(",")

    def folders(self, name: str) -> list[str]:
        """List the folders of the groups from the mounted one down to the named one."""
        folders = [self.point]
        for part in self._below_root(name):
            folders.append(f"{folders[-1]}/{part}")
        return folders

    def groups(self, name: str) -> list[Group]:
        """List the memory groups from the mounted one down to the named one."""
        folders = self.folders(name)
        if self.kind == "cgroup2":
            return [Group(folder) for folder in folders]
        ones = [_GroupOfVersionOne(folder) for folder in folders]
        # The named group counts in any case, those above it if they count their children.
        return [*(one for one in ones[:-1] if one.counts_children), ones[-1]]

    def _below_root(self, name: str) -> list[str]:
        """
        Split a group's name into the folders that lead to it from the mounted group.

        In a container the mounted group is often its own, and names may begin outside of it, with
        "/.." in a namespace of groups: of such a group nothing is to be seen but the mounted one.
        """
        root = [part for part in self.root.split("/") if part]
        parts = [part for part in name.split("/") if part]
        if parts[: len(root)] != root or ".." in parts[len(root) :]:
            return []
        return parts[len(root) :]


def _mounts(path: str) -> Iterator[_Mount]:
    for line in read_text(path).splitlines():
        # Fields before the dash vary in number: "... ROOT POINT ... - KIND SOURCE OPTIONS".
        left, _, right = line.partition(" - ")
        before, after = left.split(), right.split()
        if len(before) > 4 and len(after) > 2 and after[0] in ("cgroup", "cgroup2"):
            yield _Mount(after[0], _unescape(before[3]), _unescape(before[4]), after[2])


def _unescape(text: str) -> str:
    """Read a path in which white space and backslashes are octal numbers."""
    first, *others = text.split("\\")
    return first + "".join(chr(int(other[:3], 8)) + other[3:] for other in others)

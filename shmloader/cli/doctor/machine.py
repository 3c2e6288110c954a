"""Where checks look: the kernel's files, and the limits of this process."""

import os
import resource
import shutil

from shmloader.memory import groups
from shmloader.processes import scheduling


class Machine:
    """This machine, as this process sees it; tests make up others."""

    def read(self, path: str) -> str:
        """Read a file of the kernel; "" if it is not there or may not be read."""
        return groups.read_text(path).strip()

    def limit(self, which: int) -> int | None:
        """Return a soft limit of this process, by its number in `resource`; None: unlimited."""
        try:
            soft, _ = resource.getrlimit(which)
        except OSError:  # a filter of system calls may refuse to tell
            return None
        return None if soft == resource.RLIM_INFINITY else soft

    def cores(self) -> int:
        """Count the cores of the machine."""
        return os.cpu_count() or 1

    def affinity(self) -> int:
        """Count the cores on which this process may run."""
        return scheduling.allowed_cores(0)

    def folders(self, controller: str) -> list[str]:
        """List the folders of this process's control groups, the outermost first."""
        return groups.folders(controller)

    def space(self, folder: str) -> tuple[int, int] | None:
        """Look how many bytes a file system has, and how many are free; None: it is not there."""
        try:
            total_bytes, _, free_bytes = shutil.disk_usage(folder)
        except OSError:
            return None
        return total_bytes, free_bytes

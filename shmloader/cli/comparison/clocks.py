"""What the trainer's process has used so far: time, CPU, page faults."""

from __future__ import annotations

import resource
import time
from typing import NamedTuple


class Clocks(NamedTuple):
    """One reading of the trainer's clocks; two readings are subtracted."""

    wall_s: float
    cpu_s: float  # of every thread of this process: torch's loader puts work on threads of its own
    faults: int

    def __sub__(self, earlier: Clocks) -> Clocks:
        return Clocks(
            self.wall_s - earlier.wall_s, self.cpu_s - earlier.cpu_s, self.faults - earlier.faults
        )


def read_clocks() -> Clocks:
    """Read all clocks now."""
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    return Clocks(time.perf_counter(), time.process_time(), faults)

"""
An affinity that a library has set: OpenMP binds the thread that loads it, with `import torch`.

Whatever is started from that thread inherits its few cores, and so do all workers, however started.
"""

import os

_SETTINGS = "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"
REMEDY = (
    "set OMP_PROC_BIND=false, or call os.sched_setaffinity(0, range(os.cpu_count())) in "
    "worker_init_fn"
)


def bound_by(allowed: int, there: int) -> str:
    """
    Name the setting that made OpenMP bind this process to its cores; "": none did.

    Args:
        allowed: The cores of its affinity.
        there: Those of the machine.
    """
    given = {name: value for name in _SETTINGS if (value := os.environ.get(name))}
    if allowed >= there or given.get("OMP_PROC_BIND", "").lower() == "false":
        return ""
    return next((f"{name}={value}" for name, value in given.items()), "")

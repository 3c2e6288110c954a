"""
shmloader's DataLoader with its defaults: nothing is tuned for a workload.
"""

import importlib

from bench.contenders._arguments import loader_arguments
from bench.workloads import Workload

label = "shmloader"


def available() -> str | None:
    """
    Say why this contender cannot run here, or None.
    """
    try:
        _loader_class()
    except (ImportError, AttributeError) as error:
        return f"shmloader is not built: {error}"
    return None


def make_loader(workload: Workload, workers: int, persistent: bool, context: str):
    """
    Make the loader; it has its own `close()`.
    """
    return _loader_class()(**loader_arguments(workload, workers, persistent, context))


def _loader_class() -> type:
    return importlib.import_module("shmloader").DataLoader

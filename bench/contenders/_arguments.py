"""
What every loader with torch's signature is made of, ours and torch's alike.
"""

from bench.workloads import Workload


def loader_arguments(workload: Workload, workers: int, persistent: bool, context: str) -> dict:
    """
    Return the arguments of torch's DataLoader for a workload; everything else stays its default.
    """
    return {
        "dataset": workload.dataset(),
        "batch_size": workload.batch_size,
        "collate_fn": workload.collate_fn,
        "num_workers": workers,
        "persistent_workers": persistent,
        "multiprocessing_context": context,
    }

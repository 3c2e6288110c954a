"""What loaders did, and what to change: arithmetic on records and bytes alone."""

from shmloader.metrics.record import Epoch, Held, Stats, Times, WorkerStats

__all__ = ["Epoch", "Held", "Stats", "Times", "WorkerStats"]

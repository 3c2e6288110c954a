"""What loaders did, and what to change: arithmetic on records and bytes alone."""

from shmloader.metrics.record import CacheStats, Epoch, Held, Stats, Times, WorkerStats
from shmloader.metrics.report import Report

__all__ = ["CacheStats", "Epoch", "Held", "Report", "Stats", "Times", "WorkerStats"]

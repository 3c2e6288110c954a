"""What loaders did, and what to change: arithmetic on records and bytes alone."""

from shmloader.metrics.record import Epoch, Held, Stats, Times, WorkerStats
from shmloader.metrics.report import Report

__all__ = ["Epoch", "Held", "Report", "Stats", "Times", "WorkerStats"]

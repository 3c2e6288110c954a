"""
What a loader did, as records: what people read of it, and what others judge (advice/) and show
(views/). Plain arithmetic on records and bytes, which imports neither torch nor the core.

records.py is what `stats()` returns; history.py numbers and keeps epochs; setting.py is what a loop
was run with; layout.py reads the bytes of a segment, and timeline.py makes columns of its log.
"""

from shmloader.stats.records import (
    CacheStats,
    Epoch,
    Held,
    Stats,
    Times,
    WorkersChange,
    WorkerStats,
)

__all__ = ["CacheStats", "Epoch", "Held", "Stats", "Times", "WorkerStats", "WorkersChange"]

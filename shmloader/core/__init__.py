"""The one extension module, and what is pickled beside it: the only door to csrc/."""

from shmloader.core._core import (
    Desk,
    Ledger,
    Stopping,
    lies_in_segment,
    parking,
    segment_bytes,
    watch_process,
)
from shmloader.core.progress import Progress

__all__ = [
    "Desk",
    "Ledger",
    "Progress",
    "Stopping",
    "lies_in_segment",
    "parking",
    "segment_bytes",
    "watch_process",
]

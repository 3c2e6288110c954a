"""The one extension module, and what is pickled beside it: the only door to csrc/."""

from shmloader.core._core import (
    Desk,
    Ledger,
    News,
    Stopping,
    lies_in_segment,
    parking,
    segment_bytes,
    watch_process,
)
from shmloader.core.progress import Progress
from shmloader.core.protocol import Kind, Order, Verb

__all__ = [
    "Desk",
    "Kind",
    "Ledger",
    "News",
    "Order",
    "Progress",
    "Stopping",
    "Verb",
    "lies_in_segment",
    "parking",
    "segment_bytes",
    "watch_process",
]

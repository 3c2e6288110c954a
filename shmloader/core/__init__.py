"""The one extension module, and what is pickled beside it: the only door to csrc/."""

from shmloader.core._core import (
    BatchLog,
    Desk,
    Ledger,
    News,
    Stopping,
    adopt_orphans,
    after_fork,
    before_fork,
    generation,
    in_forked_child,
    is_behind_lease,
    look_for_children,
    parking,
    segment_bytes,
    streams,
    view_layout,
    watch_process,
)
from shmloader.core.progress import Progress
from shmloader.core.protocol import Kind, Order, Verb

__all__ = [
    "BatchLog",
    "Desk",
    "Kind",
    "Ledger",
    "News",
    "Order",
    "Progress",
    "Stopping",
    "Verb",
    "adopt_orphans",
    "after_fork",
    "before_fork",
    "generation",
    "in_forked_child",
    "is_behind_lease",
    "look_for_children",
    "parking",
    "segment_bytes",
    "streams",
    "view_layout",
    "watch_process",
]

"""What torch's loader needs of /dev/shm, so that the demo runs even if that is small."""

from __future__ import annotations

import shutil
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
PREFETCH_FACTOR = 2  # torch's default


def fitting_batch_size(batch_size: int, sample_bytes: int, workers: int) -> int:
    """
    Choose the largest batch for which torch's loader finds room in /dev/shm.

    torch keeps every batch there: those in flight, the one that the trainer holds and the one that
    it receives. If a container gives it 64 MB, a batch that is too large ends a worker with
    SIGBUS, so it is halved until it fits.

    Args:
        batch_size: The batch wanted, in samples.
        sample_bytes: Size of a sample's tensors.
        workers: Number of workers.

    Returns:
        A batch size in samples, at most the one wanted and at least 1.
    """
    if not SHARED_MEMORY.is_dir():
        return batch_size
    room_bytes = shutil.disk_usage(SHARED_MEMORY).free
    batches = PREFETCH_FACTOR * workers + 2
    while batch_size > 1 and batches * batch_size * sample_bytes > room_bytes:
        batch_size //= 2
    return batch_size

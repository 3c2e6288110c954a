"""Bytes of real segments, to be read as a stranger reads them."""

import functools
import os

from shmloader import DataLoader
from shmloader.core import view_layout
from shmloader.stats.layout import Layout
from shmloader.views.live import read_plate

LAYOUT = Layout(view_layout())


def reader_of(descriptor):
    """Make what reads so many bytes of a file at an offset."""
    return lambda size, offset: os.pread(descriptor, size, offset)


def reader_in(data):
    """Make the same for bytes."""
    return lambda size, offset: data[offset : offset + size]


@functools.cache
def segment_after(batches, workers=2):
    """
    Copy what viewers may read of a segment after some batches of four.

    Returns:
        The bytes, and the length of the whole segment.
    """
    with DataLoader(range(400), 4, num_workers=workers) as loader:
        iterator = iter(loader)
        for _ in range(batches):
            next(iterator)
        descriptor = iterator._running.segment.descriptor
        total_bytes = os.fstat(descriptor).st_size
        plate = read_plate(reader_of(descriptor), total_bytes, LAYOUT)
        end = plate.log_offset + plate.log_records * LAYOUT.dtype("log_record").itemsize
        return os.pread(descriptor, end, 0), total_bytes

"""
A second mapping of a segment, to write into it what a broken worker might write.

The offsets are those of csrc/segment.h and answer.h, repeated here because only a test may bypass
the functions of the protocol. A test compares them with a nameplate, so that the two cannot drift.
"""

import ctypes
import gc
import mmap
import os
import struct
from pathlib import Path

from shmloader.memory.segment import Segment, first_shape

LINE = 64
HUGE_BYTES = 2 << 20
CONTROL_BYTES = 16 * LINE  # nameplate of eleven lines, trainer's view of three, doorbell, stopping
WORKER_BYTES = 5 * LINE  # doorbell, seed, clock of two lines, view
HEADER_BYTES = 3 * LINE  # order, answer, times
LOG_BYTES = 2048 * 3 * LINE
SLOT_BITS = 24
PLACE, RESUME, QUIT = 1, 2, 3  # the verbs that the trainer may send
READY, WANT, RESUMED = 4, 5, 6  # the verbs that a worker may send
ANSWER = struct.Struct("<QHHIQQQQQQ")
ANSWER_FIELDS = (
    "ticket",
    "kind",
    "flags",
    "snapshot_bytes",
    "payload_bytes",
    "layout_offset",
    "layout_bytes",
    "pages_bytes",
    "want_bytes",
    "pickled_bytes",
)


def round_up(count, unit):
    """Round a count up to a multiple of the unit."""
    return -(-count // unit) * unit


class Geometry:
    """The offsets of a segment of one worker."""

    def __init__(self, shape):
        self.ring_capacity = 1 << (shape.ranges + 7).bit_length()
        ring_bytes = round_up(2 * LINE + 4 * self.ring_capacity, LINE)
        self.task_ring = CONTROL_BYTES + WORKER_BYTES
        self.ready_ring = self.task_ring + ring_bytes
        self.table = self.ready_ring + ring_bytes
        self.table_end = self.table + shape.ranges * HEADER_BYTES + LOG_BYTES
        self.slots = round_up(self.table_end, HUGE_BYTES)
        self.range_bytes = round_up(shape.range_bytes, HUGE_BYTES)
        self.total_bytes = self.slots + shape.ranges * self.range_bytes

    @property
    def cells(self):
        """The offset of the ready ring's cells."""
        return self.ready_ring + 2 * LINE

    def order(self, slot):
        """The offset of a slot's order."""
        return self.table + slot * HEADER_BYTES

    def answer(self, slot):
        """The offset of a slot's answer."""
        return self.table + slot * HEADER_BYTES + LINE

    def slot(self, slot):
        """The offset of a slot."""
        return self.slots + slot * self.range_bytes


def push_task(memory, geometry, cell):
    """Push a cell on the task ring of a segment's first worker, past its trainer."""
    write_pos = struct.unpack_from("<I", memory, geometry.task_ring)[0]
    at = geometry.task_ring + 2 * LINE + 4 * (write_pos % geometry.ring_capacity)
    struct.pack_into("<I", memory, at, cell)
    struct.pack_into("<I", memory, geometry.task_ring, (write_pos + 1) % (1 << 32))


def mappings_of(inode):
    """Find where this process maps a file of shared memory: (start, length) of each mapping."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, _, its_inode, *name = line.split()
        # A library on a disk may have the same number.
        if int(its_inode) == inode and "".join(name).startswith(("/memfd:", "/dev/shm/")):
            start, end = (int(address, 16) for address in span.split("-"))
            yield start, end - start


def descriptors_of(inode):
    """Find the descriptors of this process that lead to a file of shared memory."""
    for name in os.listdir("/proc/self/fd"):
        path = Path("/proc/self/fd", name)
        if path.exists() or path.is_symlink():
            target = os.readlink(path)
            if target.startswith(("/memfd:", "/dev/shm/")) and path.stat().st_ino == inode:
                yield int(name)


class Forger:
    """A ledger and a desk of one worker in one process, and a third mapping of their segment."""

    def __init__(self, slots=2, ring_bytes=1 << 22):
        self.segment = Segment(first_shape(1, slots, ring_bytes))
        self.ledger = self.segment.ledger
        self.desk = self.segment.handle().sit_down(0)
        self.geometry = Geometry(self.segment.shape)
        self.memory = mmap.mmap(self.segment.descriptor, self.segment.shape.total_bytes)
        self._tickets = iter(range(1 << 62))
        self._pushed = 0

    def close(self):
        """Give up all mappings, even the desk's, which in a worker lives as long as its process."""
        inode = os.fstat(self.segment.descriptor).st_ino
        self.memory.close()
        self.segment.close()
        self.ledger = self.desk = None
        gc.collect()
        for start, length in list(mappings_of(inode)):
            ctypes.CDLL(None).munmap(ctypes.c_void_p(start), ctypes.c_size_t(length))
        for descriptor in list(descriptors_of(inode)):
            os.close(descriptor)

    def write(self, batch):
        """
        Let the worker write a batch, and do not let the trainer receive it yet.

        Returns:
            The slot it lies in.
        """
        if not self.ledger.place(0, next(self._tickets), [0]):
            raise AssertionError(f"no free slot: {self.ledger.counts()}")
        return self.write_next(batch)

    def write_next(self, batch):
        """
        Let the worker take the next order and write a batch.

        Returns:
            The slot it lies in.
        """
        self.desk.take(1.0)
        self.desk.write(batch, False)
        self.desk.commit()
        self._pushed += 1
        return self.last_cell() & ((1 << SLOT_BITS) - 1)

    def read(self, spill=False):
        """Receive the next answer and turn it into a batch."""
        slot = self.ledger.receive().slot
        return self.ledger.deliver(slot, spill)

    def cell_position(self, back=0):
        """The offset of the cell that was pushed last, or of one some cells before it."""
        index = (self._pushed - 1 - back) % self.geometry.ring_capacity
        return self.geometry.cells + 4 * index

    def last_cell(self):
        """The value that was pushed last."""
        return struct.unpack_from("<I", self.memory, self.cell_position())[0]

    def answer(self, slot):
        """A slot's answer by the names of its fields."""
        values = ANSWER.unpack_from(self.memory, self.geometry.answer(slot))
        return dict(zip(ANSWER_FIELDS, values, strict=True))

    def forge_answer(self, slot, **fields):
        """Overwrite fields of a slot's answer."""
        values = {**self.answer(slot), **fields}
        ANSWER.pack_into(self.memory, self.geometry.answer(slot), *values.values())

    def layout(self, slot):
        """The layout that stands in a slot."""
        start, end = self._layout_span(slot)
        return self.memory[start:end]

    def forge_layout(self, slot, layout):
        """Replace a slot's layout; the new one may be longer, up to the slot's share."""
        offset = self.answer(slot)["layout_offset"]
        pages_bytes = round_up(offset + len(layout), mmap.PAGESIZE)
        self.forge_answer(slot, layout_bytes=len(layout), pages_bytes=pages_bytes)
        start, end = self._layout_span(slot)
        self.memory[start:end] = layout

    def _layout_span(self, slot):
        answer = self.answer(slot)
        start = self.geometry.slot(slot) + answer["layout_offset"]
        return start, start + answer["layout_bytes"]

"""The shared-memory object of an iterator: create, map, hand over, keep for the next epoch."""

import errno
import fcntl
import mmap
import os
import resource
import weakref
from dataclasses import dataclass, replace
from multiprocessing import reduction

from shmloader import metrics as records
from shmloader.core import Desk, Ledger, segment_bytes
from shmloader.errors import OutOfSharedMemory
from shmloader.memory import limits as room

BACKING_VARIABLE = "SHMLOADER_BACKING"
DEBUG_VARIABLE = "SHMLOADER_DEBUG"

# Segments are sparse: these bound addresses, not memory.
_ADDRESSES_MAX = 16 << 40
_RANGE_MIN = 1 << 20
_SPARES_MAX = 128


def _spares(slots):
    return min(2 * slots, _SPARES_MAX)


@dataclass(frozen=True)
class Shape:
    """The numbers that fix a segment: counts of workers and slots, and lengths in bytes."""

    workers: int
    slots: int
    ring_bytes: int
    range_bytes: int

    @property
    def spares(self):
        """Ranges that replace retired slots."""
        return _spares(self.slots)

    @property
    def ranges(self):
        """All entries of the slot table."""
        return self.slots + self.spares

    @property
    def total_bytes(self):
        """Length of the whole segment, nearly all of it never touched."""
        return segment_bytes(self.workers, self.ranges, self.range_bytes)


def default_ring_bytes():
    """Half of the memory that this process could ever have, in bytes."""
    return (room.total_bytes() or 8 << 30) // 2


def first_shape(workers, slots, ring_bytes):
    """The shape with the longest ranges that could be mapped: each may take the whole budget."""
    ranges = slots + _spares(slots)
    range_bytes = min(ring_bytes, _address_limit() // ranges)
    return Shape(workers, slots, ring_bytes, max(range_bytes, _RANGE_MIN))


def _address_limit():
    """Addresses that a segment may take: under RLIMIT_AS a small part, for workers map it twice."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return _ADDRESSES_MAX if limit == resource.RLIM_INFINITY else min(limit // 8, _ADDRESSES_MAX)


def _create_memfd(total_bytes):
    descriptor = os.memfd_create("shmloader", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.fchmod(descriptor, 0o600)
        os.ftruncate(descriptor, total_bytes)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _create_posix(total_bytes):
    import posix_ipc

    flags = posix_ipc.O_CREX
    memory = posix_ipc.SharedMemory(None, flags=flags, mode=0o600)
    # Unlinked at birth: whoever dies from here on, no name is left behind.
    memory.unlink()
    try:
        os.ftruncate(memory.fd, total_bytes)
    except OSError:
        os.close(memory.fd)
        raise
    return memory.fd


BACKINGS = {"memfd": _create_memfd, "posix": _create_posix}


def backing_name():
    """Which kind of shared-memory object serves here: the one that is set, else memfd if it is."""
    name = os.environ.get(BACKING_VARIABLE) or ("memfd" if hasattr(os, "memfd_create") else "posix")
    if name not in BACKINGS:
        raise ValueError(f"{BACKING_VARIABLE}={name}: choose one of {', '.join(BACKINGS)}")
    return name


def is_guarded():
    """Whether segments that are made now watch for late uses of their slots."""
    value = os.environ.get(DEBUG_VARIABLE) or "0"
    if value not in ("0", "1"):
        raise ValueError(f"{DEBUG_VARIABLE}={value}: choose 0 or 1")
    return value == "1"


class Segment:
    """
    One shared-memory object and the trainer's ledger of it.

    It stays mapped while it or any lease of its slots is alive.
    """

    def __init__(self, shape):
        """
        Create and map a segment, with shorter ranges where the wanted ones cannot be mapped.

        Raises:
            OutOfSharedMemory: Not even the shortest ranges can be mapped.
        """
        self.shape, self.descriptor, self.ledger = _create_and_map(shape)
        self._close = weakref.finalize(self, os.close, self.descriptor)

    def handle(self):
        """What a worker needs to sit down at this segment."""
        return Handle(self.descriptor, self.shape)

    def close(self):
        """Give up this hold on the memory; leases that are alive keep what they point into."""
        self._close()
        self.ledger.trim()
        self.ledger = None


def _create_and_map(shape):
    create, guarded = BACKINGS[backing_name()], is_guarded()
    while True:
        descriptor = None
        try:
            descriptor = create(shape.total_bytes)
            return shape, descriptor, _map(shape, descriptor, guarded)
        except OSError as error:
            if descriptor is not None:
                os.close(descriptor)
            if not _is_for_size(error) or shape.range_bytes // 2 < _RANGE_MIN:
                raise _cannot_map(shape, error) from error
        shape = replace(shape, range_bytes=shape.range_bytes // 2)


def _map(shape, descriptor, guarded):
    # Workers inherit this mapping and make one of their own: both must fit into RLIMIT_AS.
    with mmap.mmap(descriptor, shape.total_bytes):
        return _ledger(shape, descriptor, guarded)


def _ledger(shape, descriptor, guarded):
    return Ledger(
        descriptor,
        shape.workers,
        shape.slots,
        shape.spares,
        shape.range_bytes,
        shape.ring_bytes,
        guarded,
    )


def _is_for_size(error):
    return error.errno in (errno.ENOMEM, errno.EFBIG, errno.EINVAL)


def _cannot_map(shape, error):
    return OutOfSharedMemory(
        f"cannot create {shape.slots} slots in a segment of {shape.total_bytes / 1e6:.1f} MB "
        f"({error.strerror}): lower slots or prefetch_factor, or raise the limits that "
        "`ulimit -a` and /dev/shm show"
    )


class Handle:
    """A segment on its way to a worker: inherited by fork, sent as a descriptor otherwise."""

    def __init__(self, descriptor, shape):
        self._descriptor = descriptor
        self.shape = shape

    def __getstate__(self):
        return reduction.DupFd(self._descriptor), self.shape

    def __setstate__(self, state):
        duplicate, self.shape = state
        self._descriptor = duplicate.detach()

    def sit_down(self, worker):
        """Map the segment in this process, as the end of one worker."""
        shape = self.shape
        return Desk(
            self._descriptor,
            shape.workers,
            shape.ranges,
            shape.range_bytes,
            shape.ring_bytes,
            worker,
            room.check_room,
        )


class Shelf:
    """
    A loader's segments between its epochs.

    A segment comes back only when every worker that could write to it has been reaped; its pages
    are warm then, which is why it is kept.
    """

    def __init__(self, keep_pages=True):
        """Keep segments, with their pages, or none."""
        self._keep_pages = keep_pages
        self._idle = []
        self._lent: weakref.WeakSet[Segment] = weakref.WeakSet()
        self._past = records.Stats()
        self.spills = 0  # batches that were copied out because too much was held

    def take(self, shape):
        """Lend a segment of this shape: one that came back, or a new one."""
        segment = self._find(shape)
        if segment is None:
            segment = Segment(first_shape(shape.workers, shape.slots, shape.ring_bytes))
        self._lent.add(segment)
        return segment

    def _find(self, shape):
        for segment in self._idle:
            kept = segment.shape
            if (kept.workers, kept.slots, kept.ring_bytes) == (
                shape.workers,
                shape.slots,
                shape.ring_bytes,
            ):
                self._idle.remove(segment)
                return segment
        return None

    def give_back(self, segment):
        """Keep a segment for the next epoch, unless something may still read its retired slots."""
        self._lent.discard(segment)
        segment.ledger.restart()
        if not self._keep_pages or segment.ledger.counts()["retired"]:
            self._close(segment)
        else:
            self._idle.append(segment)

    def abandon(self, segment):
        """Never use a segment again: a worker that could write to it was not reaped."""
        self._lent.discard(segment)
        self._close(segment)

    def _close(self, segment):
        self._past += records.past(records.of_ledger(segment.ledger))
        segment.close()

    def clear(self):
        """Free all segments that nobody has on loan."""
        while self._idle:
            self._close(self._idle.pop())

    def _ledgers(self):
        return [segment.ledger for segment in (*self._idle, *self._lent)]

    def stats(self):
        """Count over all segments, those that are gone too."""
        return sum(map(records.of_ledger, self._ledgers()), self._past)

    def held(self):
        """The batches that are held in the slots of all segments."""
        return [held for ledger in self._ledgers() for held in records.held_of_ledger(ledger)]

"""The shared-memory object of an iterator: create it, map it, hand it over to workers."""

import contextlib
import errno
import fcntl
import mmap
import os
from dataclasses import dataclass, replace
from multiprocessing import reduction
from typing import Any

from shmloader.core import (
    Descriptor,
    Desk,
    Ledger,
    after_fork,
    before_fork,
    in_forked_child,
    segment_bytes,
    slots_within,
)
from shmloader.core.remedies import OF_BATCHES, Remedies
from shmloader.errors import REFUSALS, OutOfSharedMemory, if_allowed, naming
from shmloader.memory import groups, limits, page_locks, policy, ulimits
from shmloader.memory.account import account

# The slots that a forked child may read stay out of use while it lives. The hooks are the core's:
# an interrupt in one that is written in Python would leave a fork without its marks.
os.register_at_fork(before=before_fork, after_in_parent=after_fork, after_in_child=in_forked_child)

BACKING_VARIABLE = "SHMLOADER_BACKING"
DEBUG_VARIABLE = "SHMLOADER_DEBUG"
_BACKINGS = "memfd", "posix"

_MFD_NOEXEC_SEAL = getattr(os, "MFD_NOEXEC_SEAL", 0x8)
_TOO_LONG_A_NAME = "x" * 250  # for a memfd: no file is made, and a refusal is told from that
_HUGE_BYTES = 2 << 20  # csrc's: no page is longer than the unit of which ranges are made


@dataclass(frozen=True)
class Shape:
    """The numbers that fix a segment: counts of workers and slots, and lengths in bytes."""

    workers: int
    slots: int
    ring_bytes: int
    range_bytes: int
    page_bytes: int = mmap.PAGESIZE
    bound: str = ""  # the reason why ranges are no longer than this, if it is a limit
    fewest: int | None = None  # slots, if a limit leaves no long ranges for more; None: all of them
    enough_bytes: int = policy.RANGE_AIM_BYTES  # of a range, so that there need not be fewer slots
    remedy: str = "lower slots or prefetch_factor, or "  # where none can be made

    @property
    def wanted(self) -> tuple[int, int, int]:
        """What is asked for, whatever a limit made of it."""
        return self.workers, self.slots, self.ring_bytes

    @property
    def spares(self) -> int:
        """Ranges that replace retired slots."""
        return policy.fewest_spares(self.slots) if self.bound else policy.spares_of(self.slots)

    @property
    def ranges(self) -> int:
        """All entries of the slot table."""
        return self.slots + self.spares

    @property
    def total_bytes(self) -> int:
        """Length of the whole segment, nearly all of it never touched."""
        return segment_bytes(self.workers, self.ranges, self.range_bytes)


def default_ring_bytes() -> int:
    """Half of the memory that this process could ever have, in bytes, beside what it keeps."""
    part = (limits.total_bytes() or policy.UNKNOWN_MEMORY_BYTES) // limits.ranks()
    left = max(part - account().kept_bytes, part // policy.LEAST_RING_PART)
    return left // policy.RING_PART


def first_shape(
    workers: int, slots: int, ring_bytes: int, fewest: int | None = None, enough_bytes: int = 0
) -> Shape:
    """
    The shape with the longest ranges that could be mapped: each may take the whole budget.

    If a limit of this process forbids that, there are fewer spares, and each range gets its part of
    what the limit allows; if that is little there are fewer slots too, but not fewer than `fewest`.
    """
    ranges = slots + policy.spares_of(slots)
    range_bytes = max(min(ring_bytes, policy.ADDRESSES_MAX_BYTES // ranges), policy.RANGE_MIN_BYTES)
    shape = Shape(workers, slots, ring_bytes, range_bytes)
    bound = ulimits.segment_bound()
    if bound is None or shape.total_bytes <= bound.bytes:
        return shape
    if fewest is not None:
        fitting = slots_within(bound.bytes, min(enough_bytes, ring_bytes))
        shape = replace(shape, slots=min(slots, max(fewest, fitting)))
    return _bounded(replace(shape, bound=bound.reason), bound.bytes)


def shape_of(
    num_workers: int,
    prefetch_factor: int,
    slots: int | None,
    slot_bytes: int | None,
    ring_bytes: int | None,
    copied_ahead: int = 0,  # batches on their way to a device, which hold their slots meanwhile
    fewest: int = 1,  # slots without which the client could wait for ever, if none are chosen
    remedy: str = Shape.remedy,  # if no segment can be made, in place of more memory
) -> Shape:
    """
    Choose the counts and bytes of an iterator's segment from a loader's options.

    A segment that is made by it has ranges, and perhaps fewer slots, as `first_shape` says.
    """
    budget_bytes = ring_bytes or default_ring_bytes()
    enough_bytes = slot_bytes or policy.RANGE_AIM_BYTES
    if slots is not None:
        return Shape(num_workers, slots, budget_bytes, budget_bytes, remedy=remedy)
    slots = policy.default_slots(num_workers, prefetch_factor, copied_ahead)
    if ring_bytes is not None and slot_bytes is not None:
        slots = max(1, min(slots, ring_bytes // slot_bytes))
    fewest = min(slots, fewest + copied_ahead)
    return Shape(
        *(num_workers, slots, budget_bytes, budget_bytes),
        fewest=fewest,
        enough_bytes=enough_bytes,
        remedy=remedy,
    )


def _bounded(shape: Shape, total_bytes: int) -> Shape:
    """Shorten the ranges to whole huge pages, so that the segment is no longer than total_bytes."""
    shortest = replace(shape, range_bytes=_HUGE_BYTES)
    table_bytes = shortest.total_bytes - shape.ranges * _HUGE_BYTES
    units = max(0, total_bytes - table_bytes) // (shape.ranges * _HUGE_BYTES)
    # At least one, even if it is too long then: the error is the kernel's.
    return replace(shape, range_bytes=min(max(1, units) * _HUGE_BYTES, shape.range_bytes))


def open_memfd(name: str) -> Descriptor:
    """Make an empty memfd that can be sealed; it has this name in /proc alone."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        # With vm.memfd_noexec=2 the kernel refuses files that could be executed.
        return Descriptor.opened(os.memfd_create, name, flags | _MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return Descriptor.opened(os.memfd_create, name, flags)  # a kernel before 6.3
        with naming("memfd_create", f"or set {BACKING_VARIABLE}=posix"):
            raise


def seal(descriptor: int, *changes: str) -> None:
    """
    Refuse changes of a memfd, such as "SHRINK", as a guard against mistakes.

    Other files and some systems have no seals, and Pythons without memfds may not know them.
    """
    if hasattr(fcntl, "F_ADD_SEALS"):
        with if_allowed():
            seals = sum(getattr(fcntl, f"F_SEAL_{change}") for change in changes)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)


def open_posix() -> Descriptor:
    """Make an empty object of POSIX shared memory that has no name any more."""
    try:
        import posix_ipc
    except ModuleNotFoundError:
        raise ImportError(
            "posix_ipc is not installed, and shmloader's posix backing, for systems that refuse "
            "memfd_create, needs it: pip install posix_ipc",
            name="posix_ipc",
        ) from None

    flags = posix_ipc.O_CREX
    with naming("openat for a file in /dev/shm"):
        memory = posix_ipc.SharedMemory(None, flags=flags, mode=0o600)
    # Unlinked at birth: whichever process dies from here on, no name is left behind.
    memory.unlink()
    return Descriptor(memory.fd)


def create_object(total_bytes: int) -> Descriptor:
    """Make a shared-memory object of that length, of the kind that is used here."""
    file = open_object("shmloader")
    try:
        with if_allowed():
            os.fchmod(file.number, 0o600)
        with naming("ftruncate"):
            os.ftruncate(file.number, total_bytes)
        seal(file.number, "SHRINK", "GROW", "SEAL")
    except BaseException:
        file.close()  # an error that is kept has this frame
        raise
    return file


def backing_name() -> str:
    """The backing to use: $SHMLOADER_BACKING if set, otherwise memfd if it is allowed, or posix."""
    name = os.environ.get(BACKING_VARIABLE) or ("memfd" if has_memfd() else "posix")
    if name not in _BACKINGS:
        raise ValueError(f"{BACKING_VARIABLE}={name}: choose one of {', '.join(_BACKINGS)}")
    return name


def has_memfd() -> bool:
    """Returns True if this Python has memfds and the system does not refuse them."""
    if not hasattr(os, "memfd_create"):
        return False
    try:
        os.memfd_create(_TOO_LONG_A_NAME, os.MFD_CLOEXEC)
    except OSError as error:
        if _is_of_a_handler(error):
            raise
        return error.errno not in REFUSALS
    raise AssertionError("no kernel accepts that name")


def open_object(name: str) -> Descriptor:
    """Make an empty shared-memory object of the kind that is used here, without a name."""
    return open_memfd(name) if backing_name() == "memfd" else open_posix()


def is_guarded() -> bool:
    """Returns True if segments that are made now watch for late uses of their slots."""
    value = os.environ.get(DEBUG_VARIABLE) or "0"
    if value not in ("0", "1"):
        raise ValueError(f"{DEBUG_VARIABLE}={value}: choose 0 or 1")
    return value == "1"


class Segment:
    """
    One shared-memory object and the trainer's ledger of it.

    It stays mapped, and its file open, while it or any lease of its slots is alive. Not by a
    finalizer of this class: a garbage collection calls those before the `__del__` of an iterator,
    which may bring its segment back to a pool.
    """

    def __init__(self, shape: Shape, wanted: tuple[int, int, int] | None = None) -> None:
        """Create and map a segment, with shorter ranges if the wanted ones cannot be mapped."""
        self.wanted = wanted or shape.wanted  # of the caller, if a limit has lowered the slots
        self.shape, self.ledger = _create_and_map(shape)

    @property
    def descriptor(self) -> int:
        """The file."""
        return self.ledger.descriptor

    def handle(self) -> "Handle":
        """What a worker needs to map this segment."""
        return Handle(self.descriptor, self.shape)

    def close(self) -> None:
        """Give up this hold on the memory; leases that are alive keep what they point into."""
        locks = page_locks.of_ledger(self.ledger)
        if locks is None:
            self.ledger.close()
        else:
            locks.is_left = True  # it is closed once nothing in it is locked
        del self.ledger


def _create_and_map(shape: Shape) -> tuple[Shape, Ledger]:
    guarded = is_guarded()
    while True:
        try:
            with contextlib.closing(create_object(shape.total_bytes)) as file:
                shape = replace(shape, page_bytes=page_bytes(file.number))
                return shape, _map(shape, file.number, guarded)  # the ledger has one of its own
        except OSError as error:
            if _is_of_a_handler(error) or error.errno in REFUSALS:
                raise
            if not _is_for_size(error) or shape.range_bytes // 2 < policy.RANGE_MIN_BYTES:
                raise _cannot_map(shape, error) from error
        shape = replace(shape, range_bytes=shape.range_bytes // 2)


def _is_of_a_handler(error: OSError) -> bool:
    # No call here has a time limit or fails without a number: user code raised it in a signal.
    return error.errno is None or isinstance(error, TimeoutError)


def page_bytes(descriptor: int) -> int:
    """The unit in which a file's pages come, in bytes: huge pages, if tmpfs is told to use them."""
    unit = os.fstat(descriptor).st_blksize
    is_known = unit % mmap.PAGESIZE == 0 and unit > 0 and _HUGE_BYTES % unit == 0
    return unit if is_known else mmap.PAGESIZE


def _map(shape: Shape, descriptor: int, guarded: bool) -> Ledger:
    # Workers inherit this mapping and make one of their own: both must fit into RLIMIT_AS.
    # Not to be read: a process that has called mlockall() would make a page of each hole.
    with mmap.mmap(descriptor, shape.total_bytes, prot=0) as trial:
        if hasattr(mmap, "MADV_DONTDUMP"):
            with if_allowed():
                trial.madvise(mmap.MADV_DONTDUMP)
        return Ledger(descriptor, shape, guarded)


def _is_for_size(error: OSError) -> bool:
    return error.errno in (errno.ENOMEM, errno.EFBIG, errno.EINVAL)


def _cannot_map(shape: Shape, error: OSError) -> Exception:
    if not _is_for_size(error) and error.errno not in (errno.ENOSPC, errno.EDQUOT):
        # Such as a lack of descriptors, which fewer slots would not help.
        return OSError(error.errno, f"cannot create a segment of shared memory: {error.strerror}")
    return OutOfSharedMemory(
        f"cannot create {shape.slots} slots in a segment of {shape.total_bytes / 1e6:.1f} MB "
        f"({shape.bound or error.strerror}): {shape.remedy}raise the limits that "
        " `ulimit -a` and /dev/shm show"
    )


def made_here() -> dict[str, int]:
    """Tell viewers which process made what: `owner_pid`, and `owner_start`, in clock ticks or 0."""
    # A pid may come again.
    fields = groups.read_text("/proc/self/stat").rpartition(")")[2].split()
    return {"owner_pid": os.getpid(), "owner_start": int(fields[19]) if len(fields) > 19 else 0}


class Handle:
    """A segment on its way to a worker: inherited by fork, sent as a descriptor otherwise."""

    def __init__(self, descriptor: int, shape: Shape) -> None:
        self._descriptor = descriptor
        self.shape = shape

    def __getstate__(self) -> tuple[Any, Shape]:
        return reduction.DupFd(self._descriptor), self.shape

    def __setstate__(self, state: tuple[Any, Shape]) -> None:
        duplicate, self.shape = state
        self._descriptor = duplicate.detach()

    def sit_down(self, worker: int, remedies: Remedies = OF_BATCHES) -> Desk:
        """Map the segment in this process and return one worker's end of it."""
        return Desk(self._descriptor, self.shape, worker, limits.available, remedies)

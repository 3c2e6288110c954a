"""The shared-memory object: how it is made, which processes may use it, and when it is reused."""

import errno
import fcntl
import functools
import gc
import os
import stat
import sys
import weakref

import pytest
import torch

from shmloader import DataLoader, OutOfSharedMemory
from shmloader.memory import segment
from shmloader.memory.segment import Segment, Shape, first_shape, shape_of
from shmloader.memory.segment_pool import SegmentPool
from shmloader.stats import WorkersChange
from shmloader.transport.workers import Workers
from tests.helpers.belongings import mappings
from tests.helpers.datasets import Computed

BACKINGS = ["memfd", "posix"]
MEGABYTE = 1 << 20


@pytest.fixture(params=BACKINGS)
def backing(request, monkeypatch):
    """Choose each kind of shared-memory object in turn."""
    monkeypatch.setenv("SHMLOADER_BACKING", request.param)
    return request.param


@pytest.fixture
def opened(backing):
    """Give a segment of two workers and three slots."""
    made = Segment(first_shape(2, 3, 8 * MEGABYTE))
    yield made
    made.close()


def load(count=12, size=20000, **options):
    dataset = Computed(count, functools.partial(torch.full, (size,)))
    return DataLoader(dataset, **{"num_workers": 2, "multiprocessing_context": "fork", **options})


# The object


def test_only_the_owner_may_open_it(opened, backing):
    """A memfd has no name to open it by; a POSIX object is the owner's alone."""
    mode = stat.S_IMODE(os.fstat(opened.descriptor).st_mode)
    target = os.readlink(f"/proc/self/fd/{opened.descriptor}")

    if backing == "posix":
        assert 0o600 == mode
    else:
        assert target.startswith("/memfd:shmloader")


def test_it_has_no_name(opened):
    """From birth on nothing but a descriptor leads to the object."""
    assert os.readlink(f"/proc/self/fd/{opened.descriptor}").endswith(" (deleted)")
    assert not [name for name in os.listdir("/dev/shm") if "shmloader" in name]


@pytest.mark.thorough
def test_an_iterator_in_a_circle_leaves_its_segment_to_the_next_epoch(backing):
    """The number of its file may be another file's by then, which the workers would map."""
    loader = DataLoader(range(8), num_workers=1, prefetch_factor=1)
    for _ in range(3):
        circle = [iter(loader)]
        circle.append(circle)
        del circle
        gc.collect()
        number = os.open(os.devnull, os.O_RDONLY)
        found = torch.cat(list(loader)).tolist()
        os.close(number)

        assert list(range(8)) == found


def test_memfd_cannot_be_shrunk(monkeypatch):
    """No process can take pages away from under a mapping, nor change that rule."""
    monkeypatch.setenv("SHMLOADER_BACKING", "memfd")
    made = Segment(first_shape(1, 2, MEGABYTE))

    with pytest.raises(PermissionError):
        os.ftruncate(made.descriptor, 4096)
    with pytest.raises(PermissionError):
        fcntl.fcntl(made.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    made.close()


F_SEAL_EXEC = 0x20


def test_memfd_cannot_be_executed(monkeypatch):
    """It is sealed against execution if the kernel knows how, as vm.memfd_noexec=2 demands."""
    monkeypatch.setenv("SHMLOADER_BACKING", "memfd")
    made = Segment(first_shape(1, 2, MEGABYTE))
    seals = fcntl.fcntl(made.descriptor, fcntl.F_GET_SEALS)
    mode = stat.S_IMODE(os.fstat(made.descriptor).st_mode)
    made.close()

    assert (0o600, knows_noexec()) == (mode, bool(seals & F_SEAL_EXEC))


def knows_noexec():
    """Returns True if this kernel has MFD_NOEXEC_SEAL, since 6.3."""
    return os.path.exists("/proc/sys/vm/memfd_noexec")


@pytest.mark.parametrize("refused", [errno.EACCES, errno.EINVAL])
def test_memfd_is_made_by_any_kernel(monkeypatch, refused):
    """A kernel that demands the seal against execution gets it; an old one does not know it."""
    monkeypatch.setenv("SHMLOADER_BACKING", "memfd")
    create = os.memfd_create

    def strict(name, flags):
        is_sealed = bool(flags & 0x8)
        if is_sealed == (refused == errno.EINVAL):
            raise OSError(refused, os.strerror(refused))
        return create(name, flags & ~0x8)

    monkeypatch.setattr(os, "memfd_create", strict)

    Segment(first_shape(1, 2, MEGABYTE)).close()


def test_unknown_backing_is_refused(monkeypatch):
    """A setting that names no backing is an error that names those there are."""
    monkeypatch.setenv("SHMLOADER_BACKING", "floppy")

    with pytest.raises(ValueError, match="floppy: choose one of memfd, posix"):
        Segment(first_shape(1, 1, MEGABYTE))


def test_posix_serves_where_there_is_no_memfd(monkeypatch):
    """The choice falls on the other backing by itself."""
    monkeypatch.delenv("SHMLOADER_BACKING", raising=False)
    assert "memfd" == segment.backing_name()
    monkeypatch.setattr(os, "memfd_create", failing(errno.EPERM))
    assert "posix" == segment.backing_name()
    monkeypatch.delattr(os, "memfd_create")
    assert "posix" == segment.backing_name()


def failing(number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.EPERM, r"the system call memfd_create \(EPERM: .*or set SHMLOADER_BACKING=posix"),
        (errno.EMFILE, "cannot create a segment of shared memory: Too many open files"),
    ],
)
def test_memfd_that_cannot_be_made(monkeypatch, number, text):
    """What fewer slots would not help is no `OutOfSharedMemory`, and says what it is."""
    monkeypatch.setenv("SHMLOADER_BACKING", "memfd")
    monkeypatch.setattr(os, "memfd_create", failing(number))

    with pytest.raises(OSError, match=text):
        Segment(first_shape(1, 1, MEGABYTE))


@pytest.mark.parametrize("remedy", ["lower slots or prefetch_factor, or ", ""])
def test_no_room_says_what_its_client_can_do(monkeypatch, remedy):
    """A loader's options are not those of a subscription."""
    monkeypatch.setenv("SHMLOADER_BACKING", "memfd")
    monkeypatch.setattr(os, "memfd_create", failing(errno.ENOSPC))

    with pytest.raises(OutOfSharedMemory, match=rf"\): {remedy}raise the limits"):
        Segment(shape_of(1, 2, 1, None, MEGABYTE, remedy=remedy))


def test_posix_says_what_it_needs(monkeypatch):
    """Without its package, which not every Python gets, the posix backing names it."""
    monkeypatch.setenv("SHMLOADER_BACKING", "posix")
    monkeypatch.setitem(sys.modules, "posix_ipc", None)

    with pytest.raises(ImportError, match="pip install posix_ipc"):
        Segment(first_shape(1, 1, MEGABYTE))


# From epoch to epoch


@pytest.mark.thorough
def test_segment_is_abandoned_if_a_worker_lives(monkeypatch):
    """Memory that a worker may still write to is never used again."""
    loader = load()
    iterator = iter(loader)
    first = iterator._running.segment
    next(iterator)
    workers = iterator._workers
    monkeypatch.setattr(type(workers[0]), "is_alive", lambda worker: True)
    iterator._shutdown_workers()
    monkeypatch.undo()

    assert [] == loader._service.pool._idle
    assert list(range(12)) == [batch[0, 0].item() for batch in loader]
    assert [first] != loader._service.pool._idle
    for worker in workers:
        worker.join(5)
    loader.close()


@pytest.mark.parametrize("field", ["workers", "slots", "ring_bytes"])
def test_another_shape_gets_another_segment(field):
    """A segment of another shape is not lent: the loader's options were changed, so it is gone."""
    pool = SegmentPool()
    shape = Shape(1, 2, MEGABYTE, MEGABYTE)
    first = pool.acquire(shape)
    pool.release(first)
    values = {name: getattr(shape, name) for name in ("workers", "slots", "ring_bytes")}
    values[field] *= 2
    other = pool.acquire(Shape(*values.values(), values["ring_bytes"]))

    assert other is not first
    with pytest.raises(AttributeError):
        _ = first.ledger  # it was closed
    pool.release(other)
    pool.clear()


def mapped_segments():
    return len({*mappings()})  # one that is guarded is mapped in several pieces


@pytest.mark.core(first=1)
@pytest.mark.parametrize("persistent", [False, True])
def test_a_mapping_lives_as_long_as_its_batches(backing, persistent):
    """The segment is unmapped by the last batch, not before and not after."""
    gc.collect()  # what the traceback of an earlier failure held
    before = mapped_segments()
    loader = load(persistent_workers=persistent)
    held = list(loader)
    del loader
    gc.collect()
    assert before + 1 == mapped_segments()
    assert list(range(12)) == [batch[0, -1].item() for batch in held]
    held.clear()
    assert before == mapped_segments()


def test_a_worker_that_was_not_reaped_keeps_its_segment(monkeypatch):
    """It may write there still: no other iterator is given that memory, and its counts stay."""
    with DataLoader(range(8), 4, num_workers=1) as loader:
        iterator = iter(loader)
        end = Workers.end
        monkeypatch.setattr(Workers, "end", lambda self: end(self) and False)
        kept = weakref.ref(iterator._running.segment)
        assert 2 == len(list(iterator))
        del iterator
        gc.collect()
        assert kept() is None
        assert 2 == loader.stats().batches


def test_the_last_changes_of_the_number_of_workers_are_kept():
    """The newest 64, the oldest first."""
    pool = SegmentPool()
    segment = pool.acquire(Shape(1, 2, MEGABYTE, MEGABYTE))
    for batch in range(70):
        pool.note_change(segment, WorkersChange(0, batch, 1, 2, 0.5))
    pool.discard(segment)

    assert list(range(6, 70)) == [change.batch for change in pool.stats().changes]

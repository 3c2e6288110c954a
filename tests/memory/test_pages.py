"""
Pages are counted as they exist, whatever interrupts their coming, and go when nothing needs them.
"""

import gc
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch.utils.data import Dataset

from shmloader import DataLoader
from tests.helpers.copies import Child, WaitingChild
from tests.helpers.forgery import Forger, mappings_of
from tests.helpers.groups import run_with_dev_shm
from tests.helpers.programs import run

MEGABYTE = 1 << 20


class Rows(Dataset):
    """Samples of a megabyte."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.full((MEGABYTE,), index + 1, dtype=torch.uint8)


def existing_bytes(descriptor):
    """Bytes of pages that a file has."""
    return os.fstat(descriptor).st_blocks * 512


# Core dumps


def flags_of(start):
    """The kernel's flags of the mapping that starts at an address."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        if line.startswith((f"{start:x}-", f"{start:08x}-")):
            return next(line for line in lines if line.startswith("VmFlags:")).split()[1:]
    raise AssertionError(f"no mapping at {start:x}")


def dumped_bytes(inode):
    """Bytes of a file's mappings here that a core dump would have."""
    return sum(length for start, length in mappings_of(inode) if "dd" not in flags_of(start))


def test_only_the_table_is_dumped():
    """Trainer and worker leave all slots of their mappings out of core dumps."""
    forger = Forger()
    inode = os.fstat(forger.segment.descriptor).st_ino
    # Ledger and desk; the third is the test's own, which Python's mmap makes.
    dumped = dumped_bytes(inode) - forger.geometry.total_bytes
    forger.close()

    assert 2 * forger.geometry.slots == dumped


# Signals

SHIM = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

/* Tells of a signal after each piece, or interrupts the first calls. */
static long setting(const char *name) { return getenv(name) ? atol(getenv(name)) : 0; }

int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  static long calls;
  if (mode == 0 && calls++ < setting("SHIM_FIRST")) {
    raise(SIGUSR1);
    errno = EINTR;
    return -1;
  }
  long outcome = syscall(SYS_fallocate, fd, mode, offset, bytes);
  if (mode == 0 && setting("SHIM_AFTER") && bytes >= setting("SHIM_AFTER")) raise(SIGUSR1);
  return (int)outcome;
}

int fallocate64(int fd, int mode, off_t offset, off_t bytes) {
  return fallocate(fd, mode, offset, bytes);
}
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    """Build a library that stands before the kernel's fallocate."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("a C compiler is missing")
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(SHIM)
    library = folder / "shim.so"
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", library, folder / "shim.c"]
    subprocess.run(command, check=True)
    return str(library)


INTERRUPTED = """
import signal
import torch
from tests.helpers.copies import Child, WaitingChild
from tests.helpers.forgery import Forger
from tests.memory.test_pages import existing_bytes

calls = []
def handler(number, frame):
    calls.append(number)
    {action}
signal.signal(signal.SIGUSR1, handler)

def table(forger):
    return -(-forger.geometry.table_end // 4096) * 4096

try:
    forger = Forger(slots=2, ring_bytes=64 << 20)
    forger.ledger.place(0, 0, [0])
    forger.desk.take(1.0)
    try:
        forger.desk.empty((30 << 20,), torch.uint8)
    except TimeoutError:
        print("raised")
    forger.desk.write(torch.ones(1), False)
    forger.desk.commit()
    forger.ledger.receive()
    made = existing_bytes(forger.segment.descriptor) - table(forger)
    # After 30 MB come two more: what is written behind them asks for an eighth ahead.
    print(made == forger.ledger.resident_bytes, made >> 20, len(calls) > 0)
except BaseException as error:
    print(type(error).__name__)
"""


def interrupt(folder, shim, action, **settings):
    """Let a worker reserve 30 MB in one process with its trainer, behind the shim."""
    script = INTERRUPTED.format(action=action)
    settings = {name: str(value) for name, value in settings.items()}
    status, lines, errors = run(folder, script, LD_PRELOAD=shim, **settings)
    assert (0, "") == (status, errors)
    return lines


@pytest.mark.thorough
def test_pages_are_counted_before_a_handler_raises(tmp_path, shim):
    """An exception of a signal's handler, as of a time limit, leaves no page uncounted."""
    raising = "raise TimeoutError('the limit of a sample')"

    assert ["raised", "True 30 True"] == interrupt(tmp_path, shim, raising, SHIM_AFTER=MEGABYTE)


@pytest.mark.thorough
def test_handler_that_raises_while_the_table_is_reserved(tmp_path, shim):
    """What a handler raises then arrives as it is, even if it is an OSError."""
    raising = "raise TimeoutError('the limit of the job')"

    assert ["TimeoutError"] == interrupt(tmp_path, shim, raising, SHIM_FIRST=1)


# Huge pages

HUGE = """
import os, warnings
import torch
from tests.memory.test_pages import Rows, existing_bytes
from shmloader import DataLoader

warnings.simplefilter("ignore")  # such as that spilling is needed

class Small(Rows):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        return torch.full((100,), index)

with DataLoader(Small(), batch_size=2, num_workers=2, slots=40, ring_bytes=16 << 20,
                multiprocessing_context="fork") as loader:
    batches, held = iter(loader), []
    segment = batches._running.segment.descriptor
    for batch in batches:
        held = [*held, batch][-3:]
    stats = loader.stats()
    print(os.fstat(segment).st_blksize, existing_bytes(segment), stats.resident_bytes)
"""


@pytest.mark.thorough
def test_huge_pages_are_counted_as_they_exist():
    """On a tmpfs of huge pages, ring_bytes bounds what exists, and stats() says how much it is."""
    (line,) = run_with_dev_shm("huge=always", HUGE)
    page, existing, counted = map(int, line.split())
    if page == os.sysconf("SC_PAGESIZE"):
        pytest.skip("this kernel has no huge pages for tmpfs")
    assert existing <= counted + page  # the table's own page
    assert counted <= (16 << 20) + page


# After the end


def close_holding(count):
    """Iterate until some batches are held, and close. Returns them and the segment's file."""
    loader = DataLoader(Rows(), batch_size=1, num_workers=1, multiprocessing_context="fork")
    batches = iter(loader)
    held = [next(batches) for _ in range(count)]
    # This one: another test's segment may wait for the garbage collector in this process.
    segment = os.dup(batches._running.segment.descriptor)
    loader.close()
    del batches
    gc.collect()
    return held, segment


def test_dropped_batches_give_their_pages_back_after_close():
    """After close() each batch takes its own pages along, although another one is alive."""
    held, segment = close_holding(4)
    table = existing_bytes(segment)
    for left in (3, 2, 1):
        held.pop(0)
        assert table - (4 - left) * MEGABYTE >= existing_bytes(segment)
    assert 12 * [4] == held[0][0, :12].tolist()
    held.clear()
    assert existing_bytes(segment) < MEGABYTE
    os.close(segment)


def sums_of(held):
    return [int(batch.numpy().sum()) for batch in held]  # torch would use threads


def test_child_reads_what_the_trainer_drops_after_close():
    """A child forked after close() keeps its batches, whatever its parent drops."""
    held, segment = close_holding(2)
    child = WaitingChild(sums_of, held)
    held.clear()
    os.close(segment)

    assert str([MEGABYTE, 2 * MEGABYTE]) == child.end()


def test_child_that_drops_gives_nothing_back():
    """What a forked child drops stays in its parent, even after close()."""
    held, segment = close_holding(2)
    Child(held.clear).end()
    os.close(segment)

    assert [MEGABYTE, 2 * MEGABYTE] == sums_of(held)

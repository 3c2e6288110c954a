"""
What the machine itself takes for a page of shared memory that is used for the first time.

Each process makes the pages of a fresh memfd, with the calls of csrc/pages.c but none of its rules:
small pages, and huge ones, which are asked for because kernels make none by themselves.
"""

import ctypes
import mmap
import multiprocessing
import os
import time
from collections.abc import Callable

_BYTES = 128 << 20  # per process, about a large batch
PAGE_BYTES, _HUGE_BYTES = 4096, 2 << 20
_POPULATE_WRITE, _COLLAPSE = 23, 25  # Linux's numbers, which Python's mmap does not name
_MAP_FIXED = 0x10
_START_S = 60  # the longest wait for the other processes


class _Fresh:
    """A memfd without pages, mapped at an address at which its pages may be huge."""

    def __init__(self):
        self._descriptor = os.memfd_create("bench")
        os.ftruncate(self._descriptor, _BYTES)
        self._addresses = mmap.mmap(-1, _BYTES + _HUGE_BYTES)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._addresses))
        self._skipped = -base % _HUGE_BYTES
        self._map(base + self._skipped)

    def _map(self, address: int) -> None:
        # mmap.mmap takes no address.
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        flags = mmap.MAP_SHARED | _MAP_FIXED
        access = mmap.PROT_READ | mmap.PROT_WRITE
        if libc.mmap(address, _BYTES, access, flags, self._descriptor, 0) != address:
            raise OSError(ctypes.get_errno(), "no mapping at a huge page's boundary")

    def reserve(self, offset: int, length: int) -> None:
        """Let the pages of [offset, offset + length) exist."""
        os.posix_fallocate(self._descriptor, offset, length)

    def advise(self, advice: int) -> None:
        """Give the kernel this advice about the whole file."""
        self._addresses.madvise(advice, self._skipped, _BYTES)


def _make_small(file: _Fresh) -> None:
    file.reserve(0, _BYTES)
    file.advise(_POPULATE_WRITE)


def _make_huge(file: _Fresh) -> None:
    for block in range(0, _BYTES, _HUGE_BYTES):
        file.reserve(block, PAGE_BYTES)
    file.advise(_COLLAPSE)
    _make_small(file)


def prices_ns(processes: int) -> dict[str, float | None]:
    """
    Measure the price of 4 KiB in small and in huge pages, with that many processes at once.

    Returns:
        Nanoseconds between two pages of all processes together, for "small" and for "huge"; None if
        the kernel did not make huge pages.
    """
    small = _price_ns(_make_small, processes)
    if small is None:
        raise RuntimeError("no price of a first page: this needs Linux 5.14 or later")
    return {"small": small, "huge": _price_ns(_make_huge, processes)}


def _price_ns(make: Callable[[_Fresh], None], processes: int) -> float | None:
    fork = multiprocessing.get_context("fork")
    together = fork.Barrier(processes)
    clocks = [fork.Array("q", 2, lock=False) for _ in range(processes)]
    running = [
        fork.Process(target=_measure, args=(make, together, clock), daemon=True) for clock in clocks
    ]
    for process in running:
        process.start()
    for process in running:
        process.join()
    if any(ended == 0 for _, ended in clocks):
        return None
    taken = max(ended for _, ended in clocks) - min(begun for begun, _ in clocks)
    return taken / (processes * _BYTES // PAGE_BYTES)


def _measure(make: Callable[[_Fresh], None], together, clock) -> None:
    """Note when the pages were begun and done; nothing if the kernel refuses them."""
    file = _Fresh()
    together.wait(_START_S)
    begun = time.monotonic_ns()
    try:
        make(file)
    except OSError:
        return
    clock[:] = begun, time.monotonic_ns()

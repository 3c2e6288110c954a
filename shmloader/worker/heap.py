"""
The heap of a worker, on which its dataset makes samples.

Samples are freed when they have been collated, so most of what a batch takes lies at the heap's end
then. glibc gives a free end back as soon as it is larger than twice the largest block that was ever
freed, and the next batch has each page of it faulted in and zeroed again.

What it inherited by a fork is shared with the trainer until one of them writes to it, and Python's
garbage collector writes to every container that it looks at.
"""

import contextlib
import gc

import numpy

from shmloader.memory import limits, policy


def leave_inherited() -> None:
    """
    Keep the garbage collector away from all objects that are there, in this process.

    Otherwise its first full collection, which may be due when the worker is forked, copies the
    pages of every object of the program: 45 MB with torch alone, and all of a list of records.
    """
    gc.freeze()


def keep_freed_end(workers: int) -> None:
    """
    Let glibc keep up to 64 MB of a free end for the next batch, in each of so many workers.

    A block is allocated and freed, and never touched. So nothing changes with another allocator, or
    if the user has set a threshold, such as MALLOC_TRIM_THRESHOLD_.
    """
    part = (limits.available_bytes() or 0) // (policy.HEAP_PART * workers)
    if part >= policy.HEAP_BLOCK_MIN_BYTES:
        with contextlib.suppress(MemoryError):  # of `ulimit -v`
            numpy.empty(min(part, policy.HEAP_BLOCK_MAX_BYTES), numpy.uint8)

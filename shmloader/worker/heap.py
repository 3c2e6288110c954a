"""
The heap of a worker, on which its dataset makes samples.

Samples are freed when they have been collated, so most of what a batch takes lies at the heap's end
then. glibc gives a free end back as soon as it is larger than twice the largest block that was ever
freed, and the next batch has each page of it faulted in and zeroed again.
"""

import contextlib

import numpy

_BLOCK_BYTES = (32 << 20) - (
    64 << 10
)  # the largest block that glibc heeds, and room for its header


def keep_freed_end() -> None:
    """
    Let glibc keep up to 64 MB of a free end for the next batch, in this process.

    A block is allocated and freed, and never touched. So nothing changes with another allocator, or
    if the user has set a threshold, such as MALLOC_TRIM_THRESHOLD_.
    """
    with contextlib.suppress(MemoryError):  # of `ulimit -v`
        numpy.empty(_BLOCK_BYTES, numpy.uint8)

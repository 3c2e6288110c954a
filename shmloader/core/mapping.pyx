# A segment's file mapped into this process, and which addresses such mappings have.

import errno as error_numbers
import os

from libc.errno cimport errno
from libc.stdint cimport uint32_t, uint64_t
from posix.fcntl cimport F_DUPFD_CLOEXEC, fcntl
from posix.mman cimport MAP_FAILED, MAP_NORESERVE, MAP_SHARED, PROT_READ, PROT_WRITE, mmap
from posix.unistd cimport close

from shmloader.core.csrc cimport PLATFORM_PARKING, geometry, geometry_init


def segment_bytes(uint32_t workers, uint32_t ranges, uint64_t range_bytes):
    """The length in bytes of a segment of these numbers."""
    cdef geometry shape
    if geometry_init(&shape, workers, ranges, range_bytes) != 0:
        raise ValueError(f"no segment of {workers} workers and {ranges} ranges of {range_bytes} B")
    return shape.total_bytes


# Base address -> length of every segment that this process has mapped as a trainer. One that is
# gone stays listed until another lies there: lies_in_segment may say yes once too often.
cdef dict segments_mapped = {}


def lies_in_segment(size_t address):
    """Whether an address lies in a segment that this process has mapped as a trainer."""
    return any(base <= address < base + length for base, length in segments_mapped.items())


cdef object note_segment(size_t base, size_t length):
    for other, other_length in list(segments_mapped.items()):
        if other < base + length and base < other + other_length:
            del segments_mapped[other]
    segments_mapped[base] = length


def parking():
    """How processes park here: "futex" or "sleep"."""
    return PLATFORM_PARKING.decode()


cdef int duplicate(int fd) except -1:
    cdef int own_fd = fcntl(fd, F_DUPFD_CLOEXEC, 3)
    if own_fd < 0:
        raise OSError(errno, f"cannot duplicate the segment's descriptor {fd}")
    return own_fd


cdef void *map_segment(int fd, uint64_t length):
    cdef void *base = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0)
    return NULL if base == MAP_FAILED else base


cdef int raise_mapping_error(int fd, uint64_t length) except -1:
    cdef int error = errno
    close(fd)
    raise OSError(error, f"cannot map {length} bytes of shared memory ({errno_name(error)})")


cdef object errno_name(int error):
    return f"{error_numbers.errorcode.get(error, error)}: {os.strerror(error)}"

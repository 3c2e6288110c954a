# A segment's file mapped into this process, and which addresses lie behind a lease.

import errno as error_numbers
import os


def segment_bytes(uint32_t workers, uint32_t ranges, uint64_t range_bytes):
    """Compute the length in bytes of a segment's file; nearly all of it is never touched."""
    cdef geometry shape
    measure(&shape, workers, ranges, range_bytes)
    return shape.total_bytes


cdef int measure_shape(geometry *measured, object shape) except -1:
    """Fill in where the parts of a segment of a `Shape` lie."""
    cdef uint32_t page_bytes = shape.page_bytes
    measure(measured, shape.workers, <uint32_t>shape.slots + <uint32_t>shape.spares,
            shape.range_bytes)
    if page_bytes == 0 or page_bytes % measured.page_bytes or measured.range_bytes % page_bytes:
        raise ValueError(f"pages of {page_bytes} bytes: a range is whole pages of the machine's")
    measured.page_bytes = page_bytes
    return 0


cdef int measure(geometry *shape, uint32_t workers, uint32_t ranges,
                 uint64_t range_bytes) except -1:
    """Fill in where the parts of a segment lie."""
    if geometry_init(shape, workers, ranges, range_bytes) == 0:
        return 0
    if workers == 0 or workers > SEGMENT_WORKERS_MAX:
        raise ValueError(f"a segment of {workers} workers: from 1 to {SEGMENT_WORKERS_MAX} fit")
    if ranges == 0 or ranges > SLOTS_MAX:
        raise ValueError(f"a segment of {ranges} slots with spare ones: from 1 to {SLOTS_MAX} fit")
    raise ValueError(
        f"a segment of {ranges} slots of {range_bytes} bytes: from 1 byte each to {1 << 61} bytes "
        "in all fit"
    )


def slots_within(uint64_t total_bytes, uint64_t batch_bytes):
    """Count the slots for batches of that size, with the fewest spares, in so many bytes; or 0."""
    return count_slots(total_bytes, batch_bytes)


cdef int64_t count_slots(uint64_t total_bytes, uint64_t batch_bytes) noexcept:
    cdef int64_t ranges = <int64_t>(total_bytes // round_up(batch_bytes, HUGE_BYTES))
    cdef int64_t part = <int64_t>POLICY_FEW_SPARES_PART
    # The most slots that leave the fewest spares.
    return max(0, min(ranges - <int64_t>POLICY_FEW_SPARES_MIN,
                      (part * (ranges + 1) - 1) // (part + 1)))


def is_behind_lease(size_t address):
    """Returns True if an address lies in memory behind a lease: in a slot or in a spilled batch."""
    return extent_holds(<void *>address)


def parking():
    """
    Say how processes park here: "futex", or "sleep" without one.

    Without one: built with SHMLOADER_PORTABLE=1, or under a filter of system calls that refuses it.
    """
    return "futex" if platform_has_futex() else "sleep"


cdef int duplicate(int fd) except -1:
    cdef int own_fd = fcntl(fd, F_DUPFD_CLOEXEC, 3)
    if own_fd < 0:
        raise OSError(errno, f"cannot duplicate the segment's descriptor {fd}")
    return own_fd


cdef void *map_segment(int fd, const geometry *shape):
    cdef uint64_t length = shape.total_bytes
    cdef void *base = map_at(NULL, fd, length)
    cdef size_t past
    if base == MAP_FAILED:
        return NULL
    past = <size_t>base % HUGE_BYTES
    if past != 0:
        # Huge pages must lie as in the file. The addresses below are probably free, too.
        munmap(base, length)
        base = map_at(<char *>base - past, fd, length)
        if base == MAP_FAILED:
            return NULL
    # The table stays in core dumps: it is small, and says what the processes were at.
    platform_leave_undumped(<char *>base + shape.slots_offset, length - shape.slots_offset)
    return base


cdef void *map_at(void *wish, int fd, uint64_t length) noexcept:
    """Map a segment's file at an address if it is free, otherwise anywhere."""
    return platform_map_shared(wish, length, PROT_READ | PROT_WRITE, fd)


cdef int raise_mapping_error(int fd, uint64_t length) except -1:
    cdef int error = errno
    close(fd)
    raise OSError(error, f"cannot map {length} bytes of shared memory ({errno_name(error)})")


cdef object errno_name(int error):
    return f"{error_numbers.errorcode.get(error, error)}: {os.strerror(error)}"

# CUDA's driver, as csrc/driver.c finds it, and the captures that it must not disturb.
#
# An error of the driver is its number, or -errno; 0 is none.


def open_driver(bytes library):
    """
    Find CUDA's driver, once for this process.

    Args:
        library: Its name, as for dlopen.

    Returns:
        0, or the error; later calls return the same.
    """
    cdef const char *name = library
    cdef int error
    with nogil:
        error = driver_open(name)
    return error


def driver_works():
    """Returns True if the driver was found, and met no capture that was not announced."""
    return driver_is_usable()


def met_capture():
    """Returns True once a graph's capture was met that was not announced, and spoilt."""
    return driver_met_capture()


@cython.final
@cython.no_gc
cdef class Capture:
    """
    A graph's capture that was announced: as long as it lives, nothing is recorded and locked.

    So what ends a capture in no other way, an interrupt or the end of its graph, ends it too.
    """

    def __cinit__(self):
        with nogil:
            driver_capture_begins()

    def __dealloc__(self):
        driver_capture_ends()


def is_capturing():
    """Returns True while a graph is captured that was announced."""
    return driver_is_capturing()


def relax_captures(mode=None):
    """
    Have no capture mind what this thread does, such as taking pinned memory.

    Args:
        mode: What the call before returned, to take that back; None: from now on.

    Returns:
        The mode before.
    """
    return driver_exchange_mode(DRIVER_RELAXED if mode is None else mode)


def locked_bytes():
    """How many bytes of slots this process has page-locked, over all segments."""
    return pinned_total_bytes()

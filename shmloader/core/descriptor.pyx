# A file descriptor that lives as long as something refers to it, and waits for some.

cdef extern from "<poll.h>" nogil:
    ctypedef unsigned long nfds_t
    struct pollfd:
        int fd
        short events
        short revents
    short POLLIN
    int poll_in_kernel "poll" (pollfd *, nfds_t, int)


cdef class Descriptor:
    """
    A file descriptor, closed when the last name of this is gone.

    A file of Python's is closed before that where it is a part of a circle of references: the
    collector finalizes files first, and what has a __del__ that still needs them may come later.

    Attributes:
        number: The descriptor; -1 once it is closed.
    """

    cdef readonly int number

    def __cinit__(self):
        self.number = -1

    def __init__(self, int number):
        self.number = number

    @staticmethod
    def opened(open_it, *args):
        """
        Own what a function returns: an interrupt before a line of Python's own would lose the file.

        Args:
            open_it: A function of C's, such as os.memfd_create.
        """
        cdef Descriptor descriptor = Descriptor.__new__(Descriptor)
        descriptor.number = open_it(*args)
        return descriptor

    def __dealloc__(self):
        self.let_go()

    def fileno(self):
        """Return the descriptor, if it is not closed."""
        if self.number < 0:
            raise ValueError("the file is closed")
        return self.number

    def close(self):
        """Close it now; an error is not told: a forked child may have closed all that it had."""
        self.let_go()

    cdef void let_go(self) noexcept:
        if self.number >= 0:
            close(self.number)
        self.number = -1


def poll(descriptors, timeout_s=0, hanging=None):
    """
    Wait for descriptors, in the kernel: libraries such as gevent replace Python's own waits.

    Args:
        descriptors: Numbers, or what has a `fileno()`; one that has hung up is readable too.
        timeout_s: Longest wait, in seconds; 0 looks once, None waits for ever.
        hanging: More of them, of which only a hang-up counts.

    Returns:
        Those that are ready.

    Raises:
        OSError: The kernel refuses.
    """
    cdef list all = [*descriptors, *(hanging or ())]
    cdef Py_ssize_t place, count = len(all), readable = len(descriptors)
    cdef int64_t until = -1 if timeout_s is None else platform_now_ns() + <int64_t>(1e9 * timeout_s)
    cdef pollfd *looks = <pollfd *>PyMem_Malloc((count + 1) * sizeof(pollfd))
    if looks == NULL:
        raise MemoryError
    try:
        for place in range(count):
            each = all[place]
            looks[place].fd = each if type(each) is int else each.fileno()
            looks[place].events = POLLIN if place < readable else 0
            looks[place].revents = 0
        while poll_until(looks, count, until) < 0:
            if errno != EINTR:
                PyErr_SetFromErrno(OSError)
            PyErr_CheckSignals()
        return [all[place] for place in range(count) if looks[place].revents != 0]
    finally:
        PyMem_Free(looks)


cdef int poll_until(pollfd *looks, Py_ssize_t count, int64_t until) noexcept:
    """Poll until a time of the monotonic clock, or for ever if that is negative."""
    cdef int64_t left_ns = -1
    cdef int timeout_ms = -1
    if until >= 0:
        left_ns = max(<int64_t>0, until - <int64_t>platform_now_ns())
        timeout_ms = <int>min(<int64_t>1000000000, (left_ns + 999999) // 1000000)
    with nogil:
        return poll_in_kernel(looks, <nfds_t>count, timeout_ms)

# A file descriptor that lives as long as something refers to it.

from posix.unistd cimport close


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

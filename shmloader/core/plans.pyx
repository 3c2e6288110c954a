# Requests without a Python int for each index: a batch sampler whose indices are drawn as an array.


@cython.final
@cython.freelist(32)
cdef class Indices:
    """
    The indices of one request; a worker gets them as a list of ints.

    Two are equal if their numbers are, and equal to a list of them.
    """

    cdef object owner        # keeps them alive
    cdef int64_t *start
    cdef Py_ssize_t count

    def __len__(self):
        return self.count

    def __iter__(self):
        return iter(self.tolist())

    def __eq__(self, other):
        return self.tolist() == (other.tolist() if type(other) is Indices else other)

    def __repr__(self):
        return f"Indices({self.tolist()})"

    def __reduce__(self):
        return list, (self.tolist(),)

    def tolist(self):
        """Return them as a list of ints."""
        cdef Py_ssize_t place
        return [self.start[place] for place in range(self.count)]


def pack_request(index):
    """Make `Indices` of a list of ints, which is packed anyway; all else is returned as it is."""
    cdef Indices made
    cdef bytes kept
    if type(index) is not list or len(<list>index) == 0:
        return index
    kept = pack_ints(<list>index, None)
    if kept is None:
        return index
    made = Indices.__new__(Indices)
    made.owner, made.start, made.count = kept, <int64_t *>PyBytes_AS_STRING(kept), len(<list>index)
    return made


cdef bytes pack_ints(list values, tuple numbers):
    """Pack exact ints as int64 after the numbers; None if one is something else or too large."""
    cdef Py_ssize_t count = len(values), before = 0 if numbers is None else 2, i
    cdef bytes packed = PyBytes_FromStringAndSize(NULL, 8 * (before + count))
    cdef int64_t *words = <int64_t *>PyBytes_AS_STRING(packed)
    cdef int overflow = 0
    for i in range(before):
        words[i] = numbers[i]
    for i in range(count):
        if type(values[i]) is not int:
            return None
        words[before + i] = PyLong_AsLongLongAndOverflow(values[i], &overflow)
        if overflow:
            return None
    return packed


@cython.final
cdef class Plan:
    """
    The requests of one epoch, as a batch sampler would draw them: an iterator of `Indices`.

    Generators are drawn from at the moments at which torch's samplers draw from them.
    """

    cdef object draw
    cdef object end
    cdef cnp.ndarray owner   # what draw returned
    cdef int64_t *start
    cdef Py_ssize_t count
    cdef Py_ssize_t size
    cdef Py_ssize_t at
    cdef bint drop_last
    cdef bint is_over

    def __init__(self, draw, Py_ssize_t batch_size, bint drop_last, end=None):
        """
        Draw nothing yet.

        Args:
            draw: Returns all indices, a contiguous int64 ndarray (n,); called for the first batch.
            end: Called once when an index after the last one is asked for.
        """
        self.draw, self.size, self.drop_last, self.end = draw, batch_size, drop_last, end

    def __iter__(self):
        return self

    def __next__(self):
        cdef Indices made
        cdef Py_ssize_t count
        if self.is_over:
            raise StopIteration
        if self.owner is None:
            self.is_over = True  # as a generator is that raised
            self.take(self.draw())
            self.is_over = False
        count = min(self.size, self.count - self.at)
        if count < self.size:
            self.is_over = True
            if self.end is not None:
                self.end()
            if count == 0 or self.drop_last:
                raise StopIteration
        made = Indices.__new__(Indices)
        made.owner, made.start, made.count = self.owner, self.start + self.at, count
        self.at += count
        return made

    def skip(self, Py_ssize_t requests):
        """Leave out the next requests, which are drawn all the same."""
        if self.owner is None and not self.is_over:
            self.take(self.draw())
        self.at = self.count if requests > self.count // self.size else min(
            self.count, self.at + requests * self.size
        )

    cdef int take(self, cnp.ndarray drawn) except -1:
        if cnp.PyArray_TYPE(drawn) != cnp.NPY_INT64 or not cnp.PyArray_IS_C_CONTIGUOUS(drawn):
            raise TypeError(f"a plan needs contiguous int64, but got {drawn.dtype}")
        self.owner, self.start = drawn, <int64_t *>cnp.PyArray_DATA(drawn)
        self.count = cnp.PyArray_SIZE(drawn)
        return 0

# Slots that are page-locked for devices, and the fences behind them: csrc/pinned.c for one ledger.
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


@cython.final
cdef class Pins:
    """
    The page-locked slots of one ledger; it keeps the segment.

    Only where user code calls next(), iter() or close(), on that thread: never in a destructor.

    Attributes:
        ledger: Of the segment.
    """

    cdef readonly Ledger ledger

    def __init__(self, Ledger of):
        """See to the slots of a ledger."""
        self.ledger = of

    def lock(self, uint32_t slot, uint64_t length):
        """
        Page-lock the first bytes of a ready slot, before a view of it is made.

        What is locked already stays so. It takes 0.1 ms a MB, in which other threads go on.

        Returns:
            0, or the error.
        """
        cdef pinned_range found
        cdef int error
        check_slot(self.ledger.table, slot)
        error = pinned_begin(self.ledger.table, slot, length, &found)
        if error == 0 and found.bytes > 0:
            with nogil:
                error = pinned_lock(&found)
            pinned_end(self.ledger.table, slot, &found, error)
        return error

    def locked(self, uint32_t slot):
        """How many bytes of a slot are locked, from its start."""
        check_slot(self.ledger.table, slot)
        return pinned_bytes(self.ledger.table, slot)

    @property
    def locked_slots(self):
        """Number of slots that are locked."""
        return 0 if ledger_is_copy(self.ledger.table) else self.ledger.table.fences.locked_slots

    @property
    def is_alone(self):
        """True if nothing but this refers to the ledger: its owner was dropped without a close."""
        return (<PyObject *>self.ledger).ob_refcnt == 1

    @property
    def idle(self):
        """Number of slots that keep the workers busy: free, placed or ready."""
        return budget_idle(self.ledger.table)

    @property
    def waits(self):
        """True if slots wait for copies to devices, and may come back."""
        return pinned_waits(self.ledger.table)

    def look(self):
        """
        Free the slots whose copies are done, and have those wait that were released since.

        Returns:
            0, or the error of copies behind which slots stay out of use.
        """
        return pinned_look(self.ledger.table)

    def unlock(self, bint free=False, bint left=False):
        """
        Undo the locks of slots that nobody will fill soon.

        Args:
            free: Those of all free slots too.
            left: Nobody fills any more.

        Returns:
            How many slots are locked still.
        """
        return pinned_unlock(self.ledger.table,
                             PINNED_LEFT if left else PINNED_FREE if free else PINNED_UNUSED)

    def payload_bytes(self, uint32_t slot):
        """Bytes of the batch in a ready slot; 0: it is an error in a batch's place."""
        check_slot(self.ledger.table, slot)
        entry = &self.ledger.table.entries[slot]
        return entry.answer.payload_bytes if entry.answer.kind == ANSWER_BATCH else 0

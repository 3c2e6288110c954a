# Slots that are page-locked for devices, and the fences behind them: csrc/pinned.c.


cdef class LockedSlots(Figures):
    """
    What locks and unlocks the slots of a segment.

    Only where user code calls next(), iter() or close(), on that thread: never in a destructor.
    """

    def lock(self, uint32_t slot, uint64_t length):
        """
        Page-lock the first bytes of a ready slot, before a view of it is made.

        What is locked already stays so. It takes 0.1 ms a MB, in which other threads go on.

        Returns:
            0, or the error.
        """
        cdef pinned_range found
        cdef int error
        check_slot(self.table, slot)
        error = pinned_begin(self.table, slot, length, &found)
        if error == 0 and found.bytes > 0:
            with nogil:
                error = pinned_lock(&found)
            pinned_end(self.table, slot, &found, error)
        return error

    def locked(self, uint32_t slot):
        """How many bytes of a slot are locked, from its start."""
        check_slot(self.table, slot)
        return pinned_bytes(self.table, slot)

    @property
    def locked_slots(self):
        """Number of slots that are locked."""
        return 0 if ledger_is_copy(self.table) else self.table.fences.locked_slots

    @property
    def awaits_copies(self):
        """True if slots wait for copies to devices, and may come back."""
        return pinned_waits(self.table)

    def look_at_fences(self):
        """
        Free the slots whose copies are done, and have those wait that were released since.

        Returns:
            0, or the error of copies behind which slots stay out of use.
        """
        return pinned_look(self.table)

    def unlock(self, bint free=False, bint left=False):
        """
        Undo the locks of spare and retired slots, and of slots that are free after a fork.

        Args:
            free: Also of all free slots, because memory is short or their pages are given back.
            left: Also of all free slots, because the loader is closed and no worker writes to them.

        Returns:
            How many slots are locked still.
        """
        return pinned_unlock(self.table,
                             PINNED_LEFT if left else PINNED_FREE if free else PINNED_UNUSED)

    @property
    def page_locked_bytes(self):
        """Bytes of slots that are page-locked for devices, which keep the segment."""
        cdef ledger *table = self.table
        cdef uint32_t slot
        if table.fences.locked_slots == 0 or ledger_is_copy(table):
            return 0
        return sum([pinned_bytes(table, slot) for slot in range(table.geometry.ranges)])

# What a ledger has counted: for stats(), for viewers, and for the rules of what may stay.


cdef class Figures:
    """
    A segment's table, to be read: no slot moves but those that other threads have dropped.

    Attributes:
        look_after_bytes: Of delivered batches: so many may be without another look.
    """

    cdef ledger *table
    cdef readonly uint32_t slots   # in use; spare ranges come on top
    cdef public uint64_t look_after_bytes
    cdef Sums totals               # what `sums` tells
    cdef int64_t fullness_ns       # when is_time_to_look() said so
    cdef uint64_t fullness_bytes   # of delivered batches, then
    cdef dict lending              # slot -> ticket of the batch lent last, which no user holds

    def __dealloc__(self):
        if self.table != NULL:
            children_forget(self.table)
            ledger_unref(self.table)

    cdef int check_worker(self, uint32_t worker) except -1:
        if worker >= self.table.geometry.workers:
            raise_no_worker(self.table, worker)
        return 0

    def sums(self):
        """
        Return what was counted of all batches and workers so far, by name.

        `waited_ns`: parked in `wait`; `batches` delivered, `bytes` of their payload;
        `spilled`: copied to private memory when they were delivered; `restarts`: workers that were
        replaced; `pickled_bytes` in batches, `pickled_batches` that had any; `looks_found` and
        `looks_vain`: looks before parking that found a ring, or none, and `looks_ns` for them.
        """
        cdef dict sums = self.totals
        sums["looks_found"] = self.table.looks.found_count
        sums["looks_vain"] = self.table.looks.vain_count
        sums["looks_ns"] = self.table.looks.ns
        return sums

    def leave_out(self):
        """Count one batch less."""
        self.totals.batches -= 1

    def note_restart(self):
        """Count a worker that was replaced."""
        self.totals.restarts += 1

    # Of slots

    def counts(self):
        """Count the slots in each state, by its name."""
        ledger_collect(self.table)
        children_look()
        return {name: self.table.counts[i] for i, name in enumerate(STATE_NAMES)}

    def held(self):
        """List the slots that users hold: (ticket, seconds since delivery, aliases) each."""
        cdef ledger *table = self.table
        cdef uint64_t now = platform_now_ns()
        cdef uint32_t slot
        ledger_collect(table)
        return [
            (table.entries[slot].ticket, (now - table.entries[slot].leased_ns) / 1e9,
             lease_aliases(&table.entries[slot].lease))
            for slot in range(table.geometry.ranges) if table.entries[slot].state == SLOT_LEASED
            and self.lending.get(slot) != table.entries[slot].ticket
            and lease_aliases(&table.entries[slot].lease) > 0
        ]

    def idle_slots(self):
        """Count the slots that keep the workers busy: free, placed or ready."""
        ledger_collect(self.table)
        return self.idle

    @property
    def idle(self):
        """Number of these, as far as the trainer has seen."""
        return budget_idle(self.table)

    @property
    def ready(self):
        """Number of answers that were received and are still in their slots."""
        return self.table.counts[<int>SLOT_READY]

    @property
    def retired(self):
        """Number of slots that were taken out of use."""
        return self.table.counts[<int>SLOT_RETIRED]

    @property
    def spares(self):
        """Number of ranges that replace retired slots, used ones included."""
        return self.table.geometry.ranges - self.slots

    def is_pickled(self, uint32_t slot):
        """Returns True if a part of the batch in a ready slot lies in a pickle."""
        return self.table.entries[slot].answer.pickled_bytes != 0

    def lack(self, uint32_t slot, uint32_t reserve, bint has_grown=False):
        """Find why a ready slot should not be leased: a number of csrc/budget.h; 0: it may be."""
        ledger_collect(self.table)
        return budget_lack(self.table, slot, reserve, has_grown)

    # What workers wait for, and what waits for workers

    def wants(self):
        """List the wants for a larger grant: (slot, ticket, bytes) each."""
        cdef const ledger *table = self.table
        cdef uint32_t slot
        return [
            (slot, table.entries[slot].ticket, table.entries[slot].want_bytes)
            for slot in range(table.geometry.ranges) if table.entries[slot].want_bytes != 0
        ]

    @property
    def has_demands(self):
        """True if workers wait for a larger grant, or find no memory for what they were granted."""
        return self.table.wanting + self.table.shorts > 0

    def short_slots(self):
        """List the slots of workers that find no memory for pages: (slot, ticket) each."""
        cdef const ledger *table = self.table
        cdef uint32_t slot
        return [
            (slot, table.entries[slot].ticket)
            for slot in range(table.geometry.ranges) if table.entries[slot].short_bytes != 0
        ]

    def untaken(self, uint32_t worker):
        """Count the orders that a worker has not taken yet."""
        self.check_worker(worker)
        return ring_backlog(&self.table.task_rings[worker])

    def loads(self):
        """List for each worker how many of its orders are neither answered nor taken back."""
        cdef uint32_t worker
        return [seats_load(self.table, worker)
                for worker in range(self.table.geometry.workers)]

    @property
    def unread(self):
        """Number of answers that wait in the rings."""
        cdef uint32_t worker
        return sum([ring_length(&self.table.ready_rings[worker])
                    for worker in range(self.table.geometry.workers)])

    # Of bytes

    @property
    def resident_bytes(self):
        """Bytes of pages that the slots are known to have."""
        return self.table.existing_bytes

    @property
    def peak_bytes(self):
        """The most bytes that batches in use needed at once lately."""
        return demand_peak(&self.table.demand)

    @property
    def ring_bytes(self):
        """Ceiling in bytes for what the slots keep."""
        return self.table.ring_bytes

    @property
    def range_bytes(self):
        """Length in bytes of each slot's range."""
        return self.table.geometry.range_bytes

    def is_time_to_look(self):
        """
        Returns True now and then while there are many pages: is there memory for them?

        And whenever batches of `look_after_bytes` were delivered: their user may keep them all.
        """
        cdef const ledger *table = self.table
        cdef uint64_t delivered = self.totals.bytes
        cdef int64_t now
        if delivered - self.fullness_bytes < self.look_after_bytes:
            if table.existing_bytes < POLICY_LOOK_FROM_BYTES:
                return False
            now = platform_now_ns()
            if now - self.fullness_ns < <int64_t>POLICY_LOOK_NS:
                return False
        self.fullness_ns, self.fullness_bytes = platform_now_ns(), delivered
        return True

    def bytes_to_copy(self, uint32_t slot):
        """Returns what a ready slot's batch takes when it is copied out: 0 is next to nothing."""
        cdef const ledger *table = self.table
        return bytes_to_copy(table, slot) if is_worth_a_word(table, slot) else 0

    def outstanding(self):
        """Count the slots that are placed or ready: what comes next frees or leases one."""
        cdef const uint32_t *counts = self.table.counts
        return counts[<int>SLOT_PLACED] + counts[<int>SLOT_READY]

    def payload_bytes(self, uint32_t slot):
        """Bytes of the batch in a ready slot; 0: it is an error in a batch's place."""
        check_slot(self.table, slot)
        entry = &self.table.entries[slot]
        return entry.answer.payload_bytes if entry.answer.kind == ANSWER_BATCH else 0

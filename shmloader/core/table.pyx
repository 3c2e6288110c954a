# The table behind a ledger: made over a segment that is mapped here; what is counted beside it, and
# what it refuses.

from shmloader.errors import BatchTooLarge, OutOfSharedMemory, WorkerBroken

cdef tuple STATE_NAMES = (
    "free", "placed", "ready", "leased", "retired", "spare", "forked", "fenced",
)


# What the moves count, and `Ledger.sums` tells.
cdef struct Sums:
    uint64_t waited_ns
    uint64_t batches
    uint64_t bytes
    uint64_t spilled
    uint64_t restarts
    uint64_t pickled_bytes
    uint64_t pickled_batches


cdef inline void count_batch(Sums *sums, const slot_answer *answer) noexcept:
    sums.batches += 1
    sums.bytes += answer.payload_bytes
    sums.pickled_bytes += answer.pickled_bytes
    sums.pickled_batches += answer.pickled_bytes != 0


cdef uint64_t bytes_to_move(const ledger *table, uint32_t slot, uint32_t scarce_slots) noexcept:
    """Returns how much of a batch that is leased now is moved out of its slot at most."""
    cdef bint are_scarce = budget_idle(table) <= scarce_slots
    cdef uint64_t part = POLICY_MOVED_OF_LAST_PART if are_scarce else POLICY_MOVED_PART
    # Of a batch that is moved in silence nothing is moved while slots are left.
    cdef uint64_t least = POLICY_SHARED_BYTES if is_worth_a_word(table, slot) else 0
    return max(table.entries[slot].answer.payload_bytes // part, least)


cdef uint64_t bytes_to_copy(const ledger *table, uint32_t slot) noexcept:
    """Returns what the batch in a ready slot takes at most when it is copied out."""
    cdef const ledger_entry *entry = &table.entries[slot]
    return entry.answer.payload_bytes - min(entry.answer.payload_bytes, entry.record_bytes)


cdef bint is_worth_a_word(const ledger *table, uint32_t slot) noexcept:
    """Returns False if to copy a batch out of its slot takes no time and memory to speak of."""
    return bytes_to_copy(table, slot) > POLICY_SHARED_BYTES


cdef ledger *open_table(int fd, shape) except NULL:
    """Map a segment, and make the ledger that owns the mapping and a duplicate of the file."""
    cdef geometry measured
    cdef void *base
    cdef ledger *table
    cdef int own_fd
    measure_shape(&measured, shape)
    own_fd = duplicate(fd)
    base = map_segment(own_fd, &measured)
    if base == NULL:
        raise_mapping_error(own_fd, measured.total_bytes)
    STEP("map: mapped")
    try:
        reserve_table(own_fd, &measured)
        table = ledger_new(<uint8_t *>base, own_fd, &measured, shape.slots, shape.ring_bytes)
        STEP("map: ledger made")
        if table == NULL:
            raise MemoryError(f"no memory for a ledger of {measured.ranges} slots")
    except BaseException:
        munmap(base, measured.total_bytes)
        close(own_fd)
        raise
    return table


cdef int reserve_table(int fd, const geometry *measured) except -1:
    """Make the pages of the segment's table exist; signals' handlers run meanwhile."""
    cdef uint64_t done = 0
    cdef int64_t added
    while done < measured.table_end:
        added = platform_reserve(fd, done, measured.table_end - done, measured.page_bytes)
        if added < 0:
            raise OSError(-added, f"no room for the segment's table ({errno_name(-added)})")
        done += <uint64_t>added
        PyErr_CheckSignals()
    return 0

cdef int write_resume(ledger *table, uint32_t worker, seed) except -1:
    """Write what a worker reads when it is told to begin the next epoch."""
    cdef worker_block *block = segment_worker(table.base, &table.geometry, worker)
    cdef worker_resume resume
    resume.has_seed = seed is not None
    resume.seed = seed if seed is not None else 0
    STEP_WORDS("resume: half", &block.resume, &resume, sizeof(worker_resume))
    STEP("resume: written")
    return 0


# A mistake of ours: whatever it is, no slot is freed twice, and no batch is handed out twice.

cdef char *open_slot(ledger *table, uint32_t slot) except NULL:
    cdef char *start = <char *>ledger_open(table, slot)
    if start == NULL:
        raise_wrong_state(table, slot)
    return start


cdef int free_slot(ledger *table, uint32_t slot) except -1:
    if not ledger_free(table, slot):
        raise_wrong_state(table, slot)
    return 0


cdef int check_slot(ledger *table, uint32_t slot) except -1:
    if slot >= table.geometry.ranges:
        raise RuntimeError(f"no slot {slot} in a segment of {table.geometry.ranges}")
    return 0


cdef int raise_wrong_state(ledger *table, uint32_t slot) except -1:
    check_owner(table)
    check_slot(table, slot)
    raise RuntimeError(
        f"slot {slot} cannot do that: it is {STATE_NAMES[table.entries[slot].state]}, with "
        f"a quota of {table.entries[slot].grant_bytes} bytes"
    )


cdef int check_owner(ledger *table) except -1:
    """Refuse to change what belongs to the process from which this one was forked."""
    if ledger_is_copy(table):
        raise RuntimeError(
            "this segment belongs to the process that made it, and this one was forked from "
            "that: call iter(loader) here"
        )
    return 0


cdef int raise_unplaced(ledger *table, int64_t outcome, uint32_t worker, uint64_t length) except -1:
    if outcome == -EPERM:
        check_owner(table)
    if outcome == -EPROTO:
        raise WorkerBroken(f"the ring of worker {worker} was overwritten")
    if outcome == -EINVAL:
        raise_no_worker(table, worker)
    if outcome == -E2BIG:
        raise BatchTooLarge(
            f"a request of {length} bytes does not fit the range of a slot: raise ring_bytes to at "
            "least that, or request less at once"
        )
    raise OutOfSharedMemory(
        f"no room for a request of {length} bytes in shared memory "
        f"({errno_name(-outcome)}): free memory, raise its limit, or request less at once"
    )


cdef int raise_unfilled(int64_t outcome, uint64_t length) except -1:
    if outcome == -EBADMSG or outcome == -EIO:
        raise WorkerBroken(
            f"a batch of {length} bytes cannot be copied from its publisher "
            f"({errno_name(-outcome)}); its memory was overwritten"
        )
    if outcome == -E2BIG:
        raise BatchTooLarge(
            f"a batch of {length} bytes does not fit the range of a slot of this process: have "
            "the publisher's loader lower batch_size"
        )
    raise OutOfSharedMemory(
        f"no room for a batch of {length} bytes in shared memory "
        f"({errno_name(-outcome)}): free memory, or have the publisher's loader lower batch_size"
    )


cdef int raise_no_worker(ledger *table, uint32_t worker) except -1:
    raise RuntimeError(f"no worker {worker} in a segment of {table.geometry.workers}")


cdef int raise_broken(ledger *table, const news *heard) except -1:
    """Say what a worker sent, and for which ticket, if it writes the slot that it names."""
    cdef ledger_entry *entry
    cdef str ticket = ""
    if heard.slot < table.geometry.ranges:
        entry = &table.entries[heard.slot]
        if entry.state == SLOT_PLACED and entry.worker == heard.worker:
            ticket = f" (ticket {entry.ticket})"
    raise WorkerBroken(
        f"worker {heard.worker} sent slot {heard.slot}: {heard.broken.decode()}{ticket}; its "
        "memory was overwritten, perhaps by native code of the dataset"
    )


cdef list placed_with(ledger *table, uint32_t worker):
    """List the tickets that were placed with a worker and not answered."""
    cdef uint32_t slot
    return [
        table.entries[slot].ticket for slot in range(table.geometry.ranges)
        if table.entries[slot].state == SLOT_PLACED
        and table.entries[slot].worker == worker
    ]

# The memory of the slot in hand: leaves are allocated from it one after the other, pages are added
# within the trainer's grant, and a larger grant is asked for. Nothing here knows what a batch is.

from shmloader.errors import OutOfSharedMemory, WorkerBroken

cdef enum:
    SLICE_NS = 1000000000   # longest park of a worker before it looks again
    FULL_NS = 10000000      # how long a full ring is left to the trainer


class Stopping(BaseException):
    """The trainer wants this worker to leave while user code waits for pages."""


@cython.final
@cython.internal
cdef class SlotMemory:
    """A worker's seat at a segment, and the memory of the slot that it has in hand."""

    cdef desk seat
    cdef Room room             # says how many pages may be added now, or why none
    cdef uint64_t *mapped      # per range: how much of it is in this process's page tables
    cdef huge_supply supply    # how well huge pages come by
    cdef uint64_t usual        # the length of the last batch here
    # The slot in hand.
    cdef uint64_t hinted       # length for which the trainer was told that memory is tight
    cdef uint64_t told         # length for which it was told that the file system is full
    cdef int64_t slot          # -1: none
    cdef char *start
    cdef uint64_t ticket
    cdef uint64_t grant
    cdef uint64_t pages
    cdef uint64_t expected
    cdef uint64_t cursor       # after what was handed out
    cdef bint copy_in
    cdef bint guarded          # a canary stands after what was handed out so far
    cdef uint64_t canary       # how long it is; 0: none
    cdef slot_answer draft     # what will be answered, until it is published
    cdef bint forked           # user code forked while memory of the slot was handed out
    cdef lease *count          # counts the aliases of this slot; NULL until memory is handed out
    cdef lease *source         # the lease of the last allocation
    cdef uint64_t blocked_ns   # waiting for pages
    cdef bint watches          # its samples are fetched one by one, through Samples

    def __cinit__(self, Room room):
        self.slot = -1
        self.room = room

    cdef int sit(self, uint8_t *base, int fd, const geometry *shape, uint32_t worker) except -1:
        """Take a worker's seat at a mapped segment."""
        if extent_enter(base, shape.total_bytes) == NULL:
            raise MemoryError("no memory to note the address of a segment")
        self.mapped = <uint64_t *>calloc(shape.ranges, sizeof(uint64_t))
        if self.mapped == NULL:
            raise MemoryError(f"no memory for {shape.ranges} ranges")
        desk_init(&self.seat, base, fd, shape, worker)
        return 0

    # The mapping stays until the process ends, and stays entered: an alias may outlive this object.

    def __dealloc__(self):
        free(self.mapped)

    cdef slot_order *order(self) noexcept:
        return &segment_header(self.seat.base, &self.seat.geometry, self.slot).order

    cdef slot_answer *answer(self) noexcept:
        return &segment_header(self.seat.base, &self.seat.geometry, self.slot).answer

    cdef int accept(self, uint32_t slot, slot_order *order) except -1:
        """Check the order in a slot and copy it out."""
        cdef const char *fault = desk_accept(&self.seat, slot, order)
        if fault != NULL:
            raise WorkerBroken(
                f"worker {self.seat.worker} received slot {slot}: {fault.decode()}; shared memory "
                "was overwritten, perhaps by native code of the dataset"
            )
        return 0

    cdef void hold(self, uint32_t slot, const slot_order *order) noexcept:
        """Take a slot in hand whose order was accepted, with nothing handed out of it yet."""
        self.slot = slot
        self.start = <char *>self.seat.base + segment_slot_offset(&self.seat.geometry, slot)
        self.ticket = order.ticket
        self.pages = order.pages_bytes
        self.grant = order.grant_bytes
        self.expected = order.expect_bytes or self.usual
        self.supply.paused = False
        if order.pages_bytes < self.mapped[slot]:
            self.mapped[slot] = 0   # the trainer has taken pages back
        self.copy_in = order.mode & ORDER_COPY_IN
        self.guarded = order.mode & ORDER_GUARDED
        self.canary = 0
        self.cursor = order.request_bytes if order.request_kind == REQUEST_RECORD else 0
        memset(&self.draft, 0, sizeof(slot_answer))
        self.forked = self.watches = False
        self.hinted = self.told = 0
        self.blocked_ns = 0

    cdef uint64_t read_grant(self) except? 0:
        """Look at the grant again, which the trainer may have raised."""
        cdef uint64_t grant = order_grant(self.order())
        if grant < self.grant or grant > self.seat.geometry.range_bytes:
            raise WorkerBroken(
                f"worker {self.seat.worker}, ticket {self.ticket}, slot {self.slot}: a quota of "
                f"{grant} bytes after one of {self.grant}; shared memory was overwritten, perhaps "
                "by native code of the dataset"
            )
        return grant

    cdef void leave(self) noexcept:
        """Forget the slot in hand."""
        self.slot = -1

    cdef void rewind(self) noexcept:
        """Make room for an error: what was handed out is of no use, unless an alias is alive."""
        # A damaged canary is already being reported, or is less important than this error.
        self.canary = 0
        if self.count == NULL or lease_aliases(self.count) == 1:
            # Its pages may be all there are.
            self.cursor = 0

    cdef bint close(self) noexcept:
        """Hand out nothing more. Returns True if an alias is alive here, or in a forked child."""
        cdef bint is_kept = False
        if self.count != NULL:
            is_kept = self.forked or lease_aliases(self.count) != 1
            lease_drop(self.count)
            self.count = NULL
        return is_kept

    cdef char *allocate(self, uint64_t length) except NULL:
        """Memory of the slot, or private memory if the order says so, on a cache line."""
        cdef uint64_t at
        if self.copy_in:
            self.source = lease_block_new(length)
            if self.source == NULL:
                raise MemoryError(f"no memory for {length} bytes of a batch")
            return <char *>lease_block_start(self.source)
        self.count_aliases()
        self.source = self.count
        self.check_canary()
        at = round_up(self.cursor, CACHE_LINE)
        self.need(at + length)
        self.cursor = at + length
        if self.guarded:
            self.put_canary(self.cursor)
        return self.start + at

    cdef int count_aliases(self) except -1:
        """Have a lease that counts what refers to the slot in hand."""
        if self.count == NULL:
            self.count = lease_block_new(0)
            if self.count == NULL:
                raise MemoryError("no memory for a lease")
        return 0

    cdef object empty(self, shape, dtype):
        """Make a tensor of the slot in hand, uninitialised; None for what torch has to refuse."""
        cdef object code = dtype_codes.get(dtype)
        cdef int64_t dims[MAX_DIMS]
        cdef DLDataType type_
        cdef uint64_t total
        cdef int ndim = 0
        if code is None or len(shape) > MAX_DIMS:
            return None
        type_.code, type_.bits, type_.lanes = code[0], code[1], 1
        total = type_.bits // 8
        for size in shape:
            if not 0 <= size <= MAX_ELEMENTS:
                return None
            dims[ndim] = size
            if size and total > MAX_ELEMENTS // <uint64_t>size:
                return None
            total *= <uint64_t>dims[ndim]
            ndim += 1
        return self.tensor_at(self.allocate(total), type_, ndim, dims)

    cdef object tensor_at(self, char *start, DLDataType dtype, int ndim, const int64_t *shape):
        """A contiguous tensor over what allocate() returned last."""
        cdef int64_t strides[MAX_DIMS]
        cdef int64_t stride = 1
        cdef int i
        for i in range(ndim - 1, -1, -1):
            strides[i] = stride
            stride *= max(shape[i], 1)
        try:
            return tensor_over(self.source, start, dtype, ndim, shape, strides)
        finally:
            if self.copy_in:
                lease_drop(self.source)

    cdef int64_t offset_of(self, const char *start, uint64_t length) noexcept:
        """Returns the offset of the bytes in the slot's used part, or -1."""
        if start < self.start or start + length > self.start + self.cursor:
            return -1
        return start - self.start

    cdef int need(self, uint64_t end) except -1:
        """Make sure that the slot's first end bytes exist."""
        if end > self.pages:
            self.add_pages(end)
        elif self.mapped[self.slot] < end:
            self.map_pages()
        return 0

    cdef void put_canary(self, uint64_t end) noexcept:
        """Put a canary after the slot's first end bytes, as far as its pages reach."""
        self.canary = canary_bytes(end, self.pages)
        canary_write(<uint8_t *>self.start + end, self.canary, self.ticket, self.slot)

    cdef int check_canary(self) except -1:
        """Check for writes beyond the bytes handed out, before they are overwritten."""
        cdef uint8_t *start = <uint8_t *>self.start + self.cursor
        cdef uint64_t whole = canary_damage(start, self.canary, self.ticket, self.slot)
        if whole >= self.canary:
            self.canary = 0
            return 0
        raise WorkerBroken(
            f"worker {self.seat.worker}, ticket {self.ticket}, slot {self.slot}: something was "
            f"written beyond the end of the batch, at byte {self.cursor + whole} where "
            f"{self.cursor} were handed out; perhaps by native code of the dataset"
        )

    cdef int add_pages(self, uint64_t end) except -1:
        cdef uint64_t page = self.seat.geometry.page_bytes
        cdef uint64_t wanted = round_up(end, page)
        cdef uint64_t target
        if wanted > self.grant:
            # It may have been raised since, when user code gave up waiting for it.
            self.grant = self.read_grant()
        if wanted > self.grant:
            self.ask(wanted)
        # The next allocations probably need pages too: as learnt, or a part of the present ones.
        target = self.expected
        if wanted > target:
            target = wanted + self.pages // POLICY_GROWN_PART // page * page
            if target // HUGE_BYTES * HUGE_BYTES >= wanted:
                target = target // HUGE_BYTES * HUGE_BYTES
        target = min(round_up(target, page), self.grant)
        try:
            self.add_pieces(wanted, max(target, wanted))
        finally:
            self.map_pages()
        return 0

    cdef int add_pieces(self, uint64_t wanted, uint64_t target) except -1:
        """Add pages up to target, or to what is wanted if room is scarce: room.pyx says."""
        cdef uint64_t page = self.seat.geometry.page_bytes
        cdef uint64_t piece
        while self.pages < target:
            piece = self.find_room(wanted, target)
            if piece == 0:
                break
            STEP("pages: room seen")
            if not self.reserve(min(round_up(piece, page), target - self.pages), wanted):
                break
        return 0

    cdef uint64_t find_room(self, uint64_t wanted, uint64_t target) except? 0:
        """Returns how many bytes to add now; 0: no more, and what is wanted is there."""
        cdef uint64_t needed = wanted - min(self.pages, wanted)
        cdef uint64_t piece = self.room.piece(needed, target - self.pages)
        if needed > 0 and self.hinted < wanted and self.room.is_tight(wanted, needed):
            self.hint(wanted)
        return piece if piece > 0 or needed == 0 else self.look_again(wanted, target)

    cdef int hint(self, uint64_t wanted) except -1:
        """Have the trainer give back what it can spare, and give it a moment to do so."""
        cdef int64_t deadline = platform_now_ns() + <int64_t>POLICY_HINT_NS
        self.hinted = wanted
        # Not a number of whole pages, so that no refusal of it is one of the pages themselves.
        self.tell_want(wanted - 1)
        while ring_backlog(&self.seat.ready_ring) > 0 and platform_now_ns() < deadline:
            if desk_stopping(&self.seat):
                raise Stopping()
            self.park(<int64_t>POLICY_HINT_NS // 20)
        return 0

    cdef uint64_t look_again(self, uint64_t wanted, uint64_t target) except 0:
        """
        Have the trainer give back what it can spare, and wait for room or for its refusal.

        Memory comes back by itself too, as when files are written or other processes end.
        """
        cdef slot_header *header = segment_header(self.seat.base, &self.seat.geometry, self.slot)
        cdef uint64_t needed = wanted - self.pages
        cdef uint64_t piece = 0
        cdef int64_t started = self.begin_wait()
        if order_refused(&header.order) != wanted:
            self.tell_want(wanted)
        while piece == 0:
            if desk_stopping(&self.seat):
                raise Stopping()
            if order_refused(&header.order) == wanted:
                raise self.room.refusal(wanted, needed)
            self.park(<int64_t>POLICY_LOOK_AGAIN_NS)
            piece = self.room.piece(needed, target - self.pages)
        self.end_wait(started)
        return piece

    cdef int reserve(self, uint64_t piece, uint64_t wanted) except -1:
        """
        Add a piece of pages, or what a signal lets through, and count it.

        Returns:
            0 if the file system is full and what is wanted is there, so that no more is needed.
        """
        cdef uint64_t offset = segment_slot_offset(&self.seat.geometry, self.slot) + self.pages
        cdef int64_t added
        with nogil:
            added = pages_add(self.seat.fd, self.seat.base, offset, piece,
                              self.seat.geometry.page_bytes, &self.supply)
        if added < 0:
            return self.wait_for_space(wanted, -added)
        self.pages += <uint64_t>added
        STEP("pages: piece counted")
        # Only now: a handler that raises must not leave pages uncounted.
        PyErr_CheckSignals()
        return 1

    cdef int wait_for_space(self, uint64_t wanted, int64_t error) except -1:
        """Have the trainer make room in a full file system, and wait a little; as `reserve`."""
        cdef slot_header *header = segment_header(self.seat.base, &self.seat.geometry, self.slot)
        cdef int64_t started
        if self.pages >= wanted:
            return 0
        started = self.begin_wait()
        if desk_stopping(&self.seat):
            raise Stopping()
        if order_refused(&header.order) == wanted:
            raise OutOfSharedMemory(
                f"no room for {wanted - self.pages} more bytes of shared memory "
                f"({errno_name(error)}): free memory, or {self.room.remedies.short}"
            )
        if self.told != wanted:
            self.told = wanted
            self.tell_want(wanted)
        self.park(<int64_t>POLICY_LOOK_AGAIN_NS)
        self.end_wait(started)
        return 1

    cdef int64_t begin_wait(self) noexcept:
        """Show that this worker waits for pages from now on; returns the time."""
        cdef int64_t now = platform_now_ns()
        desk_show(&self.seat, WORKER_BLOCKED, now)
        return now

    cdef void end_wait(self, int64_t started) noexcept:
        """Count a wait for pages, and show what this worker goes on with."""
        cdef int64_t now = platform_now_ns()
        self.blocked_ns += now - started
        desk_show(&self.seat, WORKER_COLLATING if self.seat.times.fetched_ns else WORKER_FETCHING,
                  now)

    cdef int map_pages(self) except -1:
        """Map the slot's pages into this process at once, which is cheaper than one by one."""
        cdef uint64_t there = self.mapped[self.slot]
        if self.pages > there:
            with nogil:
                platform_populate(self.start + there, self.pages - there, True)
            self.mapped[self.slot] = self.pages
        return 0

    cdef int ask(self, uint64_t wanted) except -1:
        """Ask the trainer for a larger grant and wait for its answer."""
        cdef slot_header *header = segment_header(self.seat.base, &self.seat.geometry, self.slot)
        cdef int64_t started = self.begin_wait()
        if order_refused(&header.order) == wanted:
            # User code that tries again: the answer is known, and each want takes a cell.
            raise self.room.make_too_large(wanted)
        self.tell_want(wanted)
        while self.read_grant() < wanted:
            if desk_stopping(&self.seat):
                raise Stopping()
            if order_refused(&header.order) == wanted:
                raise self.room.make_too_large(wanted)
            self.park(SLICE_NS, wanted)
        STEP("ask: granted")
        self.grant = self.read_grant()
        self.end_wait(started)
        return 0

    cdef int tell_want(self, uint64_t wanted) except -1:
        """Tell the trainer how many bytes the slot must have; it may have granted them already."""
        self.draft.ticket = self.ticket
        self.draft.want_bytes = wanted
        STEP_WORDS("ask: half a want", self.answer(), &self.draft, sizeof(slot_answer))
        STEP("ask: want")
        self.tell(VERB_WANT, self.slot)
        return 0

    cdef int park(self, int64_t timeout_ns, uint64_t wanted=0) except -1:
        """
        Wait for a ring of this worker's doorbell, unless the trainer wants it to leave.

        Or unless a want is answered by now, if one is named.
        """
        cdef doorbell *bell = &self.seat.block.doorbell
        cdef slot_order *order = self.order()
        cdef uint32_t armed
        cdef int outcome = 0
        with nogil:
            armed = doorbell_arm(bell)
            if not desk_stopping(&self.seat) and (
                wanted == 0 or (order_grant(order) < wanted and order_refused(order) != wanted)
            ):
                outcome = doorbell_park(bell, armed, timeout_ns)
            doorbell_disarm(bell)
        if outcome == -EINTR:
            PyErr_CheckSignals()
        return 0

    cdef int tell(self, int verb, uint32_t slot) except -1:
        """
        Push a cell. Wants that user code gave up may fill the ring: then wait for the trainer.

        No handler of a signal runs meanwhile, because the answer must not be lost to its exception.
        """
        cdef doorbell *bell = &self.seat.block.doorbell
        cdef uint32_t armed
        while not desk_tell(&self.seat, verb, slot):
            if desk_stopping(&self.seat):
                raise Stopping()
            with nogil:
                armed = doorbell_arm(bell)
                if not desk_stopping(&self.seat):
                    doorbell_park(bell, armed, FULL_NS)
                doorbell_disarm(bell)
        return 0

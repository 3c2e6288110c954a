# The worker's end of a segment: take an order, allocate from its slot, commit the answer.


cdef uint64_t SLICE_NS = 1000000000   # longest park of a worker before it looks again
cdef uint64_t FULL_NS = 10000000       # how long a full ring is left to the trainer
cdef uint64_t PIECE_BYTES = 32 << 20   # pages that are added between two looks for room


def watch_process(int pid):
    """
    End this process as soon as another one is gone, even in the middle of user code.

    Raises:
        OSError: No thread can be started for it. A process that is gone already is no error.
    """
    cdef int error = watch_start(pid)
    if error != 0:
        raise OSError(-error, f"cannot watch process {pid} ({errno_name(-error)})")


class Stopping(BaseException):
    """The trainer wants this worker to leave while user code waits for pages."""


@cython.final
cdef class Desk:
    """
    A worker's end of a segment.

    Memory of the slot is handed out on the worker's main thread between take and commit only.
    """

    cdef desk seat
    cdef bint seated
    cdef unsigned long thread
    cdef object check_room
    cdef uint64_t ring_bytes
    # The order in hand.
    cdef int64_t slot
    cdef char *slot_start
    cdef uint64_t ticket
    cdef uint64_t grant
    cdef uint64_t pages
    cdef uint64_t expected
    cdef uint64_t cursor
    cdef bint copy_in
    cdef bint guarded          # a canary stands behind what was handed out so far
    cdef uint64_t canary       # how long it is; 0: none
    cdef slot_answer draft     # the answer, until it is published
    cdef bint forked           # user code forked while memory of the slot was handed out
    cdef lease *held           # counts the aliases of this slot; NULL until memory is handed out
    cdef lease *source         # the lease of the last allocation
    # Per range: how many bytes this process has mapped ahead.
    cdef uint64_t *populated
    cdef int64_t taken_ns
    cdef uint64_t blocked_ns

    def __init__(self, int fd, uint32_t workers, uint32_t ranges, uint64_t range_bytes,
                 uint64_t ring_bytes, uint32_t worker, check_room):
        """
        Map a segment and sit down at a worker's rings.

        Args:
            fd: The segment; a duplicate is kept.
            ring_bytes: The ceiling that the trainer keeps, for messages.
            worker: Which worker this is, counted from 0.
            check_room: Called with a number of bytes before pages are added; raises if the
                machine has no room for them.
        """
        cdef geometry shape
        cdef void *base
        cdef int own_fd
        self.slot = -1
        if geometry_init(&shape, workers, ranges, range_bytes) != 0 or worker >= workers:
            raise ValueError(f"no worker {worker} of {workers}")
        own_fd = duplicate(fd)
        base = map_segment(own_fd, shape.total_bytes)
        if base == NULL:
            raise_mapping_error(own_fd, shape.total_bytes)
        STEP("sit: mapped")
        self.populated = <uint64_t *>malloc(ranges * sizeof(uint64_t))
        if self.populated == NULL:
            raise MemoryError(f"no memory for {ranges} ranges")
        memset(self.populated, 0, ranges * sizeof(uint64_t))
        desk_init(&self.seat, <uint8_t *>base, own_fd, &shape, worker)
        STEP("sit: seated")
        self.thread = get_ident()
        self.check_room = check_room
        self.ring_bytes = ring_bytes

    # The mapping stays until the process ends: an alias may outlive this object.

    def __dealloc__(self):
        free(self.populated)

    def take(self, double timeout_s):
        """
        Wait for the next order, at most timeout_s seconds.

        Returns:
            ("place", index), ("resume", seed or None), ("quit", None), or None after the timeout.
        """
        cdef int64_t started = platform_now_ns()
        cdef uint32_t cell = 0
        cdef bint found = desk_take(&self.seat, &cell)
        if not found:
            found = self.park(timeout_s, &cell)
            self.taken_ns = platform_now_ns()
            clock_add(&self.seat.block.clock, 0, self.taken_ns - started, 0)
        else:
            self.taken_ns = started
        if not found:
            return None
        if cell_verb(cell) == VERB_PLACE:
            return ("place", self.begin(cell_slot(cell)))
        if cell_verb(cell) == VERB_QUIT:
            return ("quit", None)
        seed = self.seat.block.resume.seed if self.seat.block.resume.has_seed else None
        return ("resume", seed)

    cdef bint park(self, double timeout_s, uint32_t *cell) except -1:
        cdef int64_t deadline = platform_now_ns() + <int64_t>(timeout_s * 1e9)
        cdef int64_t left = deadline - platform_now_ns()
        cdef doorbell *bell = &self.seat.block.doorbell
        cdef uint32_t armed
        cdef bint found = False
        cdef int outcome = 0
        while not found and left > 0 and not desk_stopping(&self.seat):
            with nogil:
                armed = doorbell_arm(bell)
                found = desk_take(&self.seat, cell)
                if not found and not desk_stopping(&self.seat):
                    outcome = doorbell_park(bell, armed, min(left, <int64_t>SLICE_NS))
                doorbell_disarm(bell)
            if outcome == -EINTR:
                PyErr_CheckSignals()
            if not found:
                found = desk_take(&self.seat, cell)
            left = deadline - platform_now_ns()
        return found

    cdef object begin(self, uint32_t slot):
        """Take an order in hand and read its request out of the slot."""
        cdef slot_order *order = &segment_header(self.seat.base, &self.seat.geometry, slot).order
        cdef object index
        self.slot = slot
        self.slot_start = <char *>self.seat.base + segment_slot_offset(&self.seat.geometry, slot)
        self.ticket = order.ticket
        self.pages = order.pages_bytes
        self.grant = order_grant(order)
        self.expected = order.expect_bytes
        self.copy_in = order.mode & ORDER_COPY_IN
        self.guarded = order.mode & ORDER_GUARDED
        self.canary = 0
        self.cursor = 0
        memset(&self.draft, 0, sizeof(slot_answer))
        self.forked = False
        self.blocked_ns = 0
        return read_request(order.request_kind, self.slot_start, order.request_bytes)

    @property
    def stopping(self):
        """Whether the trainer wants all workers to leave."""
        return desk_stopping(&self.seat)

    @property
    def hands_out(self):
        """Whether slot memory may be handed out here and now."""
        return self.slot >= 0 and get_ident() == self.thread

    def leave_slot(self):
        """Forget the order in hand: this is a forked child, the slot is its parent's."""
        self.slot = -1

    def keep_slot(self):
        """Do not let the slot in hand be reused: a child just forked may read from it."""
        self.forked = self.held != NULL

    def resumed(self):
        """Tell the trainer that the next epoch has begun here."""
        self.tell(VERB_RESUMED, 0)

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

    def write(self, batch, bint is_error, dumps):
        """
        Write a batch, or an exception of user code, into the slot in hand.

        The caller drops its references to the batch before it commits.

        Raises:
            BatchTooLarge: It needs more bytes than the budget or the range allow.
            OutOfSharedMemory: There is no room for its pages.
            Exception: Whatever pickling a leaf raises.
        """
        cdef Encoder encoder
        if self.slot < 0:
            raise RuntimeError("there is no order in hand whose batch could be written")
        encoder = Encoder.__new__(Encoder, self, dumps)
        if is_error:
            # A canary that was written over is this error, or less than it.
            self.canary = 0
        if is_error and (self.held == NULL or lease_aliases(self.held) == 1):
            # What was collated before is of no use, and its pages may be all there are.
            self.cursor = 0
        encoder.put(batch)
        encoder.finish(&self.draft)
        self.draft.snapshot_bytes = 0
        self.draft.kind = ANSWER_ERROR if is_error else ANSWER_BATCH

    def write_snapshot(self, bytes snapshot):
        """
        Write behind the answer what a replacement of this worker would need to go on from here.

        Raises:
            As `write`; the answer in hand is then incomplete and has to be written again.
        """
        cdef uint64_t start = self.draft.layout_offset + self.draft.layout_bytes
        cdef uint64_t length = PyBytes_GET_SIZE(snapshot)
        if length > UINT32_MAX:
            raise OverflowError(f"a snapshot of {length} bytes, of which at most {UINT32_MAX} fit")
        self.need(start + length)
        STEP_COPY("snapshot: half", self.slot_start + start, PyBytes_AS_STRING(snapshot), length)
        STEP("snapshot: written")
        self.draft.snapshot_bytes = <uint32_t>length
        return None

    def write_end(self):
        """Answer that this worker's iterable dataset is exhausted."""
        self.write_empty(ANSWER_END)

    def write_nothing(self):
        """Answer a request that is skipped."""
        self.write_empty(ANSWER_NOTHING)

    cdef int write_empty(self, int kind) except -1:
        STEP("nothing: begun")
        self.draft.kind = kind
        self.draft.payload_bytes = self.draft.layout_bytes = self.draft.pickled_bytes = 0
        self.draft.layout_offset = self.draft.snapshot_bytes = 0
        return 0

    cdef slot_order *order(self) noexcept:
        return &segment_header(self.seat.base, &self.seat.geometry, self.slot).order

    cdef slot_answer *answer(self) noexcept:
        return &segment_header(self.seat.base, &self.seat.geometry, self.slot).answer

    def commit(self):
        """
        Publish the answer in hand.

        A slot of which an alias is still alive in this process is published as kept: the trainer
        delivers it and never lets it be written again.
        """
        cdef slot_answer *draft = &self.draft
        draft.ticket = self.ticket
        draft.pages_bytes = self.pages
        draft.flags = 0
        if self.guarded and (draft.kind == ANSWER_BATCH or draft.kind == ANSWER_ERROR):
            self.put_canary(answer_end(draft))
        if self.held != NULL:
            if self.forked or lease_aliases(self.held) != 1:
                draft.flags = ANSWER_KEPT
                STEP("commit: kept")
            lease_drop(self.held)
            self.held = NULL
        STEP_COPY("commit: half an answer", self.answer(), draft, sizeof(slot_answer))
        STEP("commit: answer")
        clock_add(&self.seat.block.clock, platform_now_ns() - self.taken_ns - self.blocked_ns, 0,
                  self.blocked_ns)
        slot, self.slot = self.slot, -1
        self.tell(VERB_READY, slot)

    def empty(self, shape, dtype):
        """Make a tensor of the slot in hand, uninitialised; None for a dtype DLPack lacks."""
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
            dims[ndim] = size
            if dims[ndim] < 0 or (size and total > (<uint64_t>1 << 62) // <uint64_t>size):
                return None
            total *= <uint64_t>dims[ndim]
            ndim += 1
        return self.tensor_at(self.allocate(total), type_, ndim, dims)

    def gather(self, str what, samples):
        """Collate "tensors", "arrays", "ints" or "floats" into the slot; None where torch must."""
        if not is_row(samples):
            return None
        if what == "tensors":
            return gather_tensors(self, samples)
        if what == "arrays":
            return gather_arrays(self, samples)
        if what == "ints":
            return gather_ints(self, samples)
        return gather_floats(self, samples)

    def collate(self, samples, dict functions, original):
        """
        Collate samples into the slot as torch's collate() would with its stock functions.

        Args:
            functions: torch's map, handed on to original.
            original: torch's collate(), for what is not covered and for every error.
        """
        return collate_samples(self, samples, functions, original)

    cdef char *allocate(self, uint64_t length) except NULL:
        """Memory of the slot, or private memory where the order says so, on a cache line."""
        cdef uint64_t start
        if self.copy_in:
            self.source = lease_block_new(length)
            if self.source == NULL:
                raise MemoryError(f"no memory for {length} bytes of a batch")
            return <char *>lease_block_start(self.source)
        if self.held == NULL:
            self.held = new_count()
        self.source = self.held
        self.check_canary()
        start = round_up(self.cursor, CACHE_LINE)
        self.need(start + length)
        self.cursor = start + length
        if self.guarded:
            self.put_canary(self.cursor)
        return self.slot_start + start

    cdef void put_canary(self, uint64_t end) noexcept:
        """Put a canary behind the slot's first end bytes, as far as its pages reach."""
        self.canary = canary_bytes(end, self.pages)
        canary_write(<uint8_t *>self.slot_start + end, self.canary, self.ticket, self.slot)

    cdef int check_canary(self) except -1:
        """Make sure that nobody wrote behind what was handed out, before it is written over."""
        cdef uint8_t *start = <uint8_t *>self.slot_start + self.cursor
        cdef uint64_t whole = canary_damage(start, self.canary, self.ticket, self.slot)
        if whole >= self.canary:
            self.canary = 0
            return 0
        raise WorkerBroken(
            f"worker {self.seat.worker}, ticket {self.ticket}, slot {self.slot}: something was "
            f"written beyond the end of the batch, at byte {self.cursor + whole} where "
            f"{self.cursor} were handed out; perhaps by native code of the dataset"
        )

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
        """Where in the slot's used part the bytes lie, or -1."""
        if start < self.slot_start or start + length > self.slot_start + self.cursor:
            return -1
        return start - self.slot_start

    cdef int need(self, uint64_t end) except -1:
        """Make sure that the slot's first end bytes exist."""
        if end > self.pages:
            self.add_pages(end)
        elif self.populated[self.slot] < end:
            self.populate()
        return 0

    cdef int add_pages(self, uint64_t end) except -1:
        cdef uint64_t page = self.seat.geometry.page_bytes
        cdef uint64_t wanted = round_up(end, page)
        cdef uint64_t target
        if wanted > self.grant:
            # It may have been raised since, when user code gave up waiting for it.
            self.grant = order_grant(self.order())
        if wanted > self.grant:
            self.ask(wanted)
        # What follows will probably need pages too: as learnt, or an eighth of what is there.
        target = self.expected
        if wanted > target:
            target = wanted + self.pages // 8 // page * page
        target = min(round_up(target, page), self.grant)
        try:
            self.add_pieces(max(target, wanted))
        finally:
            self.populate()
        return 0

    cdef int add_pieces(self, uint64_t target) except -1:
        """Add pages up to target, looking for room before each piece: others add theirs now too."""
        cdef uint64_t others = self.seat.geometry.workers - 1
        cdef uint64_t piece
        cdef int error
        while self.pages < target:
            piece = min(target - self.pages, PIECE_BYTES)
            self.check_room(target - self.pages + others * piece)
            STEP("pages: room seen")
            error = self.reserve(self.pages, piece)
            if error != 0:
                raise OutOfSharedMemory(
                    f"no room for {target - self.pages} more bytes of shared memory "
                    f"({errno_name(-error)}): free memory, raise the limit, or lower batch_size, "
                    "slots or prefetch_factor"
                )
            self.pages += piece
            STEP("pages: piece counted")
        return 0

    cdef int reserve(self, uint64_t start, uint64_t length) except? 1:
        cdef uint64_t offset = segment_slot_offset(&self.seat.geometry, self.slot) + start
        cdef int error = -EINTR
        while error == -EINTR:
            with nogil:
                error = platform_reserve(self.seat.fd, offset, length)
            PyErr_CheckSignals()
        return error

    cdef int populate(self) except -1:
        """Map the slot's pages into this process at once, which is cheaper than one by one."""
        cdef uint64_t done = self.populated[self.slot]
        cdef uint64_t end = self.pages
        if end > done:
            with nogil:
                platform_populate(self.slot_start + done, end - done)
            self.populated[self.slot] = end
        return 0

    cdef int ask(self, uint64_t wanted) except -1:
        """Ask the trainer for a larger grant and wait for its answer."""
        cdef slot_header *header = segment_header(self.seat.base, &self.seat.geometry, self.slot)
        cdef doorbell *bell = &self.seat.block.doorbell
        cdef int64_t started = platform_now_ns()
        cdef uint32_t armed
        cdef int outcome = 0
        if order_refused(&header.order) == wanted:
            # User code that tries again: the answer is known, and each want takes a cell.
            self.raise_refusal(wanted)
        self.draft.ticket = self.ticket
        self.draft.want_bytes = wanted
        STEP_COPY("ask: half a want", &header.answer, &self.draft, sizeof(slot_answer))
        STEP("ask: want")
        self.tell(VERB_WANT, self.slot)
        while order_grant(&header.order) < wanted:
            if desk_stopping(&self.seat):
                raise Stopping()
            if order_refused(&header.order) == wanted:
                self.raise_refusal(wanted)
            with nogil:
                armed = doorbell_arm(bell)
                if (order_grant(&header.order) < wanted
                        and order_refused(&header.order) != wanted
                        and not desk_stopping(&self.seat)):
                    outcome = doorbell_park(bell, armed, SLICE_NS)
                doorbell_disarm(bell)
            if outcome == -EINTR:
                PyErr_CheckSignals()
        STEP("ask: granted")
        self.grant = order_grant(&header.order)
        self.blocked_ns += platform_now_ns() - started
        return 0

    cdef int raise_refusal(self, uint64_t wanted) except -1:
        if wanted > self.ring_bytes:
            raise BatchTooLarge(
                f"batch of {wanted / 1e6:.1f} MB does not fit ring_bytes of "
                f"{self.ring_bytes / 1e6:.1f} MB: raise ring_bytes to at least {wanted} or lower "
                "batch_size"
            )
        raise BatchTooLarge(
            f"batch of {wanted / 1e6:.1f} MB does not fit a slot's range of "
            f"{self.seat.geometry.range_bytes / 1e6:.1f} MB: lower slots, prefetch_factor or "
            "batch_size"
        )


cdef extern from "lease.h" nogil:
    lease *lease_count_new()


cdef lease *new_count() except NULL:
    cdef lease *count = lease_count_new()
    if count == NULL:
        raise MemoryError("no memory for a lease")
    return count


cdef object read_request(uint32_t kind, const char *start, uint64_t length):
    cdef const int64_t *numbers = <const int64_t *>start
    cdef uint64_t i
    if kind == REQUEST_INDICES:
        return [numbers[i] for i in range(length // 8)]
    if kind == REQUEST_INDEX:
        return numbers[0]
    if kind == REQUEST_NONES:
        return [None] * numbers[0]
    return pickle.loads(PyBytes_FromStringAndSize(start, length))

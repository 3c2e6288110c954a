# The worker's end of a segment: take an order, write the batch into its slot, commit the answer.

from threading import get_ident

from shmloader.core.protocol import Order
from shmloader.core.remedies import OF_BATCHES
from shmloader.errors import WorkerBroken

cdef object PLACE = Order.PLACE
cdef object RESUME = Order.RESUME
cdef tuple QUIT = (Order.QUIT, None)


def watch_process(int pid):
    """End this process as soon as another one is gone, even in the middle of user code."""
    cdef int error = watch_start(pid)
    if error != 0:
        raise OSError(
            -error,
            f"process {getpid()} cannot start the thread that watches process {pid}, because the "
            f"system call clone3 or clone fails ({errno_name(-error)}): raise `ulimit -u`, or "
            "allow it in the sandbox or its seccomp profile"
        )


def limit_life(double seconds):
    """End this process then with status 0, even in native code; not if no thread can be started."""
    watch_limit(<int>(seconds * 1e3))


def lift_limit():
    """Live on."""
    watch_lift_limit()


@cython.final
@cython.freelist(8)
cdef class Taken:
    """
    An order that a worker has taken from its ring and not begun; only the desk makes it.

    Attributes:
        index: The request.
        numbers: Of its epoch and of its batch there, if draws are seeded by them.
    """

    cdef uint32_t slot
    cdef slot_order order
    cdef int64_t taken_ns
    cdef readonly object index    # the request
    cdef readonly tuple numbers   # as the desk's


@cython.final
cdef class PlacedRecord:
    """A request that was placed as a `PackedRecord`; only the desk makes it."""

    cdef SlotMemory memory
    cdef uint64_t ticket
    cdef uint64_t length

    def open(self):
        """
        Read the record, while its order is in hand.

        Returns:
            The object. Its tensors and arrays lie in the slot: one that is alive at `commit` makes
            the slot one that is delivered and never written again. If too many are such, they lie
            in private memory.

        Raises:
            DamagedRecord: The bytes are not those of a record.
            Exception: An object's own error when it is made again.
        """
        cdef SlotMemory memory = self.memory
        if memory.slot < 0 or memory.ticket != self.ticket:
            raise RuntimeError("this request is not in hand any more")
        memory.need(self.length)
        if memory.copy_in:
            return decode_record(memory.start, self.length, NULL, None, None, True)
        memory.count_aliases()
        return decode_record(memory.start, self.length, memory.count, None, None, False)


cdef PlacedRecord placed_record(SlotMemory memory, uint64_t ticket, uint64_t length):
    cdef PlacedRecord placed = PlacedRecord.__new__(PlacedRecord)
    placed.memory, placed.ticket, placed.length = memory, ticket, length
    return placed


@cython.final
cdef class Desk:
    """
    A worker's end of a segment.

    Memory of the slot is handed out on the worker's main thread between take and commit only. The
    segment stays mapped until the process ends, because an alias may outlive the desk.
    """

    cdef SlotMemory memory
    cdef unsigned long thread
    cdef int pid                  # of the worker; a child that user code forks has another
    cdef bint is_open             # the trainer may ask this worker
    cdef readonly tuple numbers   # of the batch in hand: its epoch's, and its own there; or None

    def __init__(self, int fd, shape, uint32_t worker, available, remedies=OF_BATCHES):
        """
        Map a segment, for a worker that sits down at its rings when it first takes an order.

        Args:
            fd: The segment; a duplicate is kept.
            shape: The segment's counts and bytes, as for `Ledger`.
            worker: Which worker this is, counted from 0.
            available, remedies: As for `Room`.

        Raises:
            OSError: The file cannot be mapped.
            ValueError: No segment has such numbers, or there is no such worker.
        """
        cdef geometry measured
        cdef void *base
        cdef int own_fd
        self.memory = SlotMemory.__new__(SlotMemory, Room(shape, available, remedies))
        measure_shape(&measured, shape)
        if worker >= measured.workers:
            raise ValueError(f"no worker {worker} in a segment of {measured.workers}, from 0 on")
        own_fd = duplicate(fd)
        base = map_segment(own_fd, &measured)
        if base == NULL:
            raise_mapping_error(own_fd, measured.total_bytes)
        STEP("sit: mapped")
        self.memory.sit(<uint8_t *>base, own_fd, &measured, worker)
        STEP("sit: seated")
        self.memory.room.follow(<uint8_t *>base, &measured)
        self.thread, self.pid = get_ident(), getpid()
        self.memory.seat.view.pid = <uint64_t>self.pid | <uint64_t>VIEW_STARTING
        desk_show(&self.memory.seat, WORKER_ABSENT, platform_now_ns())

    cdef open_seat(self):
        """Say that this worker may be asked: behind its imports, and the user's init function."""
        cdef desk *seat = &self.memory.seat
        self.is_open = True
        seat.view.pid = self.pid
        desk_show(seat, WORKER_IDLE, platform_now_ns())
        # Requests may wait for it.
        doorbell_ring(&segment_control(seat.base).doorbell)
        STEP("sit: told")

    def take(self, double timeout_s):
        """
        Wait for the next order and take it in hand; the interpreter's lock is free meanwhile.

        Args:
            timeout_s: Longest wait, in seconds; 0 looks once.

        Returns:
            (Order.PLACE, index), (Order.RESUME, seed or None),
            (Order.QUIT, None), or None after the timeout and as soon as `stopping`.

        Raises:
            WorkerBroken: The order is not one that the trainer has given to this worker now.
        """
        cdef tuple order = self.take_ahead(timeout_s)
        cdef Taken taken
        if order is None or order[0] is not PLACE:
            return order
        taken = order[1]
        self.begin_as_of(taken, taken.taken_ns)
        return (PLACE, taken.index)

    cpdef tuple take_ahead(self, double timeout_s=0):
        """
        Take the next order without beginning it, while another one may be in hand.

        Args:
            timeout_s: As for `take`; above 0 only with no order in hand or to be begun.

        Returns:
            As `take`, but (Order.PLACE, a `Taken`), for `begin`.
        """
        cdef int64_t taken_ns = platform_now_ns()
        cdef uint32_t cell = 0
        cdef Taken taken
        if not self.next_order(timeout_s, &taken_ns, &cell):
            return None
        if cell_verb(cell) == VERB_PLACE:
            taken = self.accept(cell_slot(cell))
            taken.taken_ns = taken_ns
            return (PLACE, taken)
        return self.order_of(cell)

    cdef bint next_order(self, double timeout_s, int64_t *now, uint32_t *cell) except -1:
        """Take the next cell of the ring, and wait for it; `now` is brought to the end of that."""
        cdef desk *seat = &self.memory.seat
        cdef int64_t started = now[0]
        cdef uint64_t looks_found = seat.looks.found_count, looks_vain = seat.looks.vain_count
        cdef bint found
        if not self.is_open:
            self.open_seat()
        found = desk_take(seat, cell)
        if found or timeout_s <= 0:
            return found
        if seat.view.state != WORKER_IDLE:  # otherwise each timeout would begin it anew
            desk_show(seat, WORKER_IDLE, started)
        found = self.wait_for_order(timeout_s, cell)
        now[0] = platform_now_ns()
        clock_add_starved(&seat.block.clock, now[0] - started,
                          seat.looks.found_count - looks_found,
                          seat.looks.vain_count - looks_vain)
        return found

    cdef tuple order_of(self, uint32_t cell):
        """Read an order that is about no slot."""
        if cell_verb(cell) == VERB_QUIT:
            return QUIT
        if cell_verb(cell) == VERB_RESUME:
            return (RESUME, self.read_seed())
        raise WorkerBroken(
            f"worker {self.memory.seat.worker} received an unknown request {cell_verb(cell)}; "
            "shared memory was overwritten, perhaps by native code of the dataset"
        )

    cdef object read_seed(self):
        cdef worker_resume resume
        words_read(&resume, &self.memory.seat.block.resume, sizeof(worker_resume))
        return resume.seed if resume.has_seed else None

    cdef bint wait_for_order(self, double timeout_s, uint32_t *cell) except -1:
        cdef int64_t deadline = platform_now_ns() + <int64_t>(timeout_s * 1e9)
        cdef int64_t left = deadline - platform_now_ns()
        cdef desk *seat = &self.memory.seat
        cdef doorbell *bell = &seat.block.doorbell
        cdef control_block *control = segment_control(seat.base)
        cdef uint32_t armed, seen
        cdef bint found = False
        cdef int outcome = 0
        while not found and left > 0 and not desk_stopping(seat):
            with nogil:
                seen = doorbell_count(bell)
                found = desk_take(seat, cell) or (
                    looks_try(&seat.looks, &control.may_look, bell, seen)
                    and desk_take(seat, cell)
                )
                if not found:
                    armed = doorbell_arm(bell)
                    found = desk_take(seat, cell)
                    if not found and not desk_stopping(seat):
                        outcome = doorbell_park(bell, armed, min(left, <int64_t>SLICE_NS))
                    doorbell_disarm(bell)
            if outcome == -EINTR:
                PyErr_CheckSignals()
            if not found:
                found = desk_take(seat, cell)
            left = deadline - platform_now_ns()
        return found

    def count_left_out(self):
        """Count a sample that the dataset left out; in a child that user code forked, nothing."""
        if self.pid == getpid():
            self.memory.seat.left_out += 1

    def park(self, is_done, bint wants_orders, double timeout_s):
        """
        Park with a batch in hand until this worker's doorbell is rung, unless there is news.

        Args:
            is_done: Called without arguments: True if what is waited for is there. What makes it
                so must `ring` afterwards.
            wants_orders: An order is news too.
            timeout_s: Longest wait, in seconds.

        Raises:
            Stopping: The trainer wants this worker to leave.
            BaseException: The error of a signal's handler, or of is_done.
        """
        cdef desk *seat = &self.memory.seat
        cdef doorbell *bell = &seat.block.doorbell
        cdef int64_t timeout_ns = <int64_t>(timeout_s * 1e9)
        cdef uint32_t armed = doorbell_arm(bell)
        cdef int outcome = 0
        try:
            if desk_stopping(seat):
                raise Stopping()
            if not (wants_orders and ring_has_value(&seat.task_ring)) and not is_done():
                with nogil:
                    outcome = doorbell_park(bell, armed, timeout_ns)
        finally:
            doorbell_disarm(bell)
        if outcome == -EINTR:
            PyErr_CheckSignals()

    def ring(self):
        """Ring this worker's own doorbell, on which it may `park`; on any of its threads."""
        doorbell_ring(&self.memory.seat.block.doorbell)

    cdef Taken accept(self, uint32_t slot):
        """Check an order, and read its request out of the slot."""
        cdef Taken taken = Taken.__new__(Taken)
        cdef desk *seat = &self.memory.seat
        cdef char *start = <char *>seat.base
        cdef uint64_t length
        self.memory.accept(slot, &taken.order)
        start += segment_slot_offset(&seat.geometry, slot)
        length = taken.order.request_bytes
        if taken.order.mode & ORDER_NUMBERED:
            taken.numbers = read_numbers(start)
            start += ORDER_NUMBERS_BYTES
            length -= ORDER_NUMBERS_BYTES
        taken.slot = slot
        if taken.order.request_kind == REQUEST_RECORD:
            taken.index = placed_record(self.memory, taken.order.ticket, length)
        else:
            taken.index = read_request(taken.order.request_kind, start, length)
        return taken

    def begin(self, Taken taken):
        """Take an order in hand that was taken ahead."""
        self.begin_as_of(taken, platform_now_ns())

    cdef begin_as_of(self, Taken taken, int64_t taken_ns):
        self.memory.hold(taken.slot, &taken.order)
        self.numbers = taken.numbers
        desk_begin_batch(&self.memory.seat, taken.order.ticket, taken_ns)

    def watch(self, indices):
        """Show which sample in hand is fetched. Returns what torch's fetcher is given instead."""
        return watched_samples(self.memory, indices) if type(indices) is list else indices

    def show_replay(self, uint64_t done, uint64_t total):
        """Show how many batches were fetched again, while no batch is in hand."""
        desk_begin_sample(&self.memory.seat, <uint32_t>min(done, <uint64_t>UINT32_MAX),
                          <uint32_t>min(total, <uint64_t>UINT32_MAX),
                          <int64_t>VIEW_UNKNOWN_INDEX)

    def begin_collating(self):
        """Note that the samples are there, unless their number said so before."""
        if self.memory.slot >= 0:
            desk_begin_collating(&self.memory.seat, self.memory.blocked_ns)

    @property
    def stopping(self):
        """True if the trainer wants all workers to leave."""
        return desk_stopping(&self.memory.seat)

    @property
    def hands_out(self):
        """True if slot memory may be handed out here and now."""
        return self.memory.slot >= 0 and get_ident() == self.thread

    @property
    def walks(self):
        """True if samples may be collated natively here and now: they are not nested too deep."""
        return self.memory.slot >= 0 and levels < DEPTH and get_ident() == self.thread

    def leave_slot(self):
        """Forget the order in hand: this is a forked child, the slot is its parent's."""
        self.memory.leave()

    def keep_slot(self):
        """Do not let the slot in hand be reused: a child just forked may read from it."""
        self.memory.forked = self.memory.count != NULL

    def resumed(self):
        """Tell the trainer that the next epoch has begun here."""
        self.memory.tell(VERB_RESUMED, 0)

    def write(self, batch, bint is_error):
        """
        Write a batch, or an exception of user code, into the slot in hand.

        The caller drops its references to the batch before it commits.

        Raises:
            BatchTooLarge: It needs more bytes than the budget or the range allow.
            OutOfSharedMemory: The machine has no memory for its pages.
            Stopping: The trainer wants this worker to leave and grants nothing more.
            Exception: The error of pickling a leaf.
        """
        cdef slot_answer *draft = &self.memory.draft
        if self.memory.slot < 0:
            raise RuntimeError("there is no request in hand whose batch could be written")
        desk_begin_collating(&self.memory.seat, self.memory.blocked_ns)
        if is_error:
            self.memory.rewind()
        walked(self.memory, batch).finish(draft)
        draft.snapshot_bytes = 0
        draft.kind = ANSWER_ERROR if is_error else ANSWER_BATCH

    def write_snapshot(self, bytes snapshot):
        """
        Write after the answer where a replacement of this worker would go on.

        Raises:
            BatchTooLarge, OutOfSharedMemory, Stopping: As `write`; the answer in hand is then
                incomplete and has to be written again.
            OverflowError: The snapshot is longer than 4 GiB.
        """
        cdef slot_answer *draft = &self.memory.draft
        cdef uint64_t start = draft.layout_offset + draft.layout_bytes
        cdef uint64_t length = PyBytes_GET_SIZE(snapshot)
        if length > UINT32_MAX:
            raise OverflowError(f"a snapshot of {length} bytes, of which at most {UINT32_MAX} fit")
        self.memory.need(start + length)
        STEP_COPY("snapshot: half", self.memory.start + start, PyBytes_AS_STRING(snapshot), length)
        STEP("snapshot: written")
        draft.snapshot_bytes = <uint32_t>length

    def write_empty(self, bint is_end):
        """Answer without a batch: this worker's dataset is exhausted, or the request skipped."""
        cdef slot_answer *draft = &self.memory.draft
        STEP("nothing: begun")
        draft.kind = ANSWER_END if is_end else ANSWER_NOTHING
        draft.payload_bytes = draft.layout_bytes = draft.pickled_bytes = 0
        draft.layout_offset = draft.snapshot_bytes = draft.flags = 0

    def commit(self):
        """
        Publish the answer in hand.

        A slot of which an alias is still alive in this process is published as kept: the trainer
        delivers it and never lets it be written again.
        """
        cdef SlotMemory memory = self.memory
        cdef slot_answer *draft = &memory.draft
        cdef uint32_t slot = memory.slot
        draft.ticket = memory.ticket
        draft.pages_bytes = memory.pages
        if draft.kind == ANSWER_BATCH:
            memory.usual = answer_end(draft)
        if memory.guarded and (draft.kind == ANSWER_BATCH or draft.kind == ANSWER_ERROR):
            memory.put_canary(answer_end(draft))
        if memory.close():
            draft.flags |= ANSWER_KEPT
            STEP("commit: kept")
        STEP_WORDS("commit: half an answer", memory.answer(), draft, sizeof(slot_answer))
        STEP("commit: answer")
        desk_end_batch(&memory.seat, slot, memory.blocked_ns, draft.payload_bytes)
        memory.leave()
        memory.tell(VERB_READY, slot)

    def empty(self, shape, dtype):
        """
        Make an uninitialised tensor (*shape) of the slot in hand, aligned to 64 bytes.

        Returns:
            The tensor; None for a dtype that DLPack lacks.
        """
        return self.memory.empty(shape, dtype)

    def collate(self, samples, dict functions, original):
        """
        Collate samples into the slot as torch's collate() would with its stock functions.

        Args:
            functions: torch's map, handed on to original.
            original: torch's collate(), for what is not covered and for every error.

        Returns:
            As `original`; tensors (B, *sample shape) lie in the slot if they can.
        """
        if not self.memory.watches:
            desk_begin_collating(&self.memory.seat, self.memory.blocked_ns)
        return collate_samples(self.memory, samples, functions, original)

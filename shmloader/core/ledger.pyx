# The trainer's end of a segment: its moves. Each method is one move of csrc/ledger.c or one batch.
# What was counted stands in figures.pyx, what is page-locked in locked_slots.pyx, and where workers
# are in progress.pyx.

from functools import partial

from shmloader.errors import WorkerBroken, is_own


@cython.final
cdef class Ledger(LockedSlots):
    """
    The trainer's private truth about a segment, and its end of all rings.

    Only the thread that iterates may call it. Its batches may be dropped on any thread.

    Attributes:
        scarce_slots: With no more idle slots than these, up to half of a leased batch is moved
            out of its slot, which then comes back when its largest leaves are gone.
        progress: Where its workers are.
    """

    cdef object __weakref__
    cdef int64_t looked_ns      # when children were looked for
    cdef uint64_t next_ticket   # tickets are placed in order: what lies below was placed
    cdef readonly Progress progress
    cdef public uint32_t scarce_slots
    cdef bint is_nudged         # by a thread that wants the one that waits to look around

    def __init__(self, int fd, shape, bint guarded=False):
        """
        Map a segment and take it over.

        Args:
            fd: A file of zeros, as long as the shape says; a duplicate is kept.
            shape: The segment's counts and bytes: `workers`, `slots` in use, `spares` (ranges that
                replace retired ones), `range_bytes` of each, `ring_bytes` that the slots may keep,
                `page_bytes` in which the file's pages come.
            guarded: Watch for late uses of slots, as csrc/debug/guard.c says.

        Raises:
            OSError: The file cannot be mapped.
            ValueError: No segment has such numbers.
            BaseException: The error of a signal's handler.
            MemoryError: There is no private memory for the ledger, or for its guard.
        """
        self.slots = shape.slots
        self.look_after_bytes = <uint64_t>-1
        self.lending = {}
        self.progress = Progress()
        self.table = open_table(fd, shape)
        children_watch(self.table)
        self.begin_progress()
        if guarded and guard_start(self.table) != 0:
            raise MemoryError(f"no memory for a guard of {self.table.geometry.ranges} slots")

    def place(self, uint32_t worker, uint64_t ticket, index, bint copy_in=False,
              tuple numbers=None):
        """
        Write a request into a free slot and send it to a worker, once for each ticket.

        Args:
            ticket: The batch's turn number; tickets are placed in rising order.
            index: A list of ints, an int, a list of None, a `PackedRecord`, which has no numbers,
                or any object that can be pickled.
            copy_in: Have the worker collate in private memory and copy the batch in once.
            numbers: Of the epoch and of the batch in it, if the worker's draws are seeded by them.

        Returns:
            True if it was sent, now or before; False if no slot is free, and nothing happened.

        Raises:
            OutOfSharedMemory: There is no room for the request's pages.
            Exception: The error of pickling an index that is not made of ints.
        """
        cdef Request request
        cdef record_writer writer
        cdef dict recalled = self.progress.recalled
        cdef uint32_t mode = ORDER_COPY_IN if copy_in else 0
        cdef int64_t outcome
        cdef object _kept
        if ticket < self.next_ticket and ticket not in recalled:
            return True
        ledger_collect(self.table)
        if self.table.counts[<int>SLOT_FORKED] != 0:
            self.look_for_children()
        if self.table.free_count == 0:
            return False
        if numbers is not None:
            mode |= ORDER_NUMBERED
        if isinstance(index, PackedRecord):
            _kept = describe_record(index, &writer, &request)
        else:
            _kept = write_request(index, numbers, &request)
        outcome = ledger_place(self.table, worker, ticket, request.kind, request.start,
                               request.length, mode)
        if outcome >= 0:
            self.next_ticket = max(self.next_ticket, ticket + 1)
            recalled.pop(ticket, None)
            return True
        if outcome != -EAGAIN and outcome != -EINTR:
            raise_unplaced(self.table, outcome, worker, request.length)
        return False

    def fill(self, uint64_t ticket, Posted posted, Window window):
        """
        Copy a batch of another segment into a free slot, which is ready then.

        Args:
            ticket: Its turn number here.
            posted: Where it lies.
            window: The file; it is read no further than the batch's end.

        Returns:
            (slot, `Kind`), or None if no slot is free.

        Raises:
            BatchTooLarge: It does not fit a slot's range.
            WorkerBroken: What is said of it contradicts itself.
            OutOfSharedMemory: There is no room for its pages.
        """
        cdef int64_t outcome
        check_owner(self.table)
        ledger_collect(self.table)
        if self.table.counts[<int>SLOT_FORKED] != 0:
            self.look_for_children()
        with nogil:
            outcome = ledger_fill(self.table, ticket, &posted.answer, window.find(posted),
                                  window.descriptor, posted.offset)
        if outcome == -EAGAIN:
            return None
        if outcome < 0:
            raise_unfilled(outcome, posted.length)
        return outcome, KINDS[self.table.entries[outcome].answer.kind]

    def lacking(self, uint64_t length):
        """How many bytes of pages the next slot to be filled lacks for so many bytes."""
        cdef const ledger *table = self.table
        cdef uint64_t pages = round_up(length, table.geometry.page_bytes)
        cdef uint64_t there = 0
        ledger_collect(self.table)
        if table.free_count > 0:
            there = table.entries[table.free_slots[table.free_count - 1]].pages_bytes
        return pages - min(pages, there)

    def fits(self, uint64_t length):
        """Returns True if so many bytes in the next slot to be filled keep within `ring_bytes`."""
        cdef uint64_t pages = round_up(length, self.table.geometry.page_bytes)
        ledger_collect(self.table)
        if self.table.free_count == 0:
            return False
        return budget_room(self.table, self.table.free_slots[self.table.free_count - 1],
                           pages) >= pages

    cdef look_for_children(self):
        """Free slots whose children are gone, as often as it can matter."""
        cdef uint64_t every_ns = (POLICY_CHILDREN_SELDOM_NS if self.table.free_count
                                  else POLICY_CHILDREN_OFTEN_NS)
        cdef int64_t now = platform_now_ns()
        if now - self.looked_ns >= <int64_t>every_ns:
            self.looked_ns = now
            children_look()

    def tell_resume(self, uint32_t worker, seed):
        """Tell a worker to begin the next epoch; seed: of all its data pipes, None without one."""
        check_owner(self.table)
        self.check_worker(worker)
        write_resume(self.table, worker, seed)
        if not ledger_tell(self.table, worker, VERB_RESUME):
            raise WorkerBroken(f"the ring of worker {worker} was overwritten")
        self.progress.note_told(worker, seed)

    def tell_resumes_again(self):
        """Tell replacements the resumes that their dead workers had not answered."""
        for worker in self.progress.to_tell_again():
            self.tell_resume(worker, self.progress.words[worker])

    def tell_quit(self, uint32_t worker):
        """Tell a worker to leave after the orders sent before."""
        ledger_tell(self.table, worker, VERB_QUIT)

    def stop(self):
        """Tell all workers to leave as soon as they look, leaving orders undone."""
        ledger_stop(self.table, True)

    def restart(self):
        """Make the segment ready for new workers; all old ones have been reaped."""
        ledger_restart(self.table)
        self.begin_progress()
        self.next_ticket = 0
        self.fullness_ns, self.fullness_bytes = 0, 0

    cdef begin_progress(self):
        self.progress.begin(self.table.geometry.workers, self.table.geometry.ranges)

    def close(self):
        """
        Give back the pages of all free slots, and those of the others as their batches are dropped.

        Nothing is placed after it.
        """
        children_look_now()
        ledger_close(self.table)

    def rest(self, bint keeps_pages):
        """
        Give back pages of free slots, between two epochs.

        Args:
            keeps_pages: Leave the next epoch what its batches will need, if that is known: if the
                last ones were of about one size. Otherwise all pages go back.
        """
        ledger_rest(self.table, not keeps_pages)

    def rest_held(self, bint keeps_pages):
        """The same for held batches, as these are dropped; it is called before `rest`."""
        ledger_rest_leased(self.table, not keeps_pages)

    def grow(self):
        """Use one slot more if late drops call for it. Returns True if there is one more."""
        return ledger_grow(self.table)

    def receive(self):
        """Take the next news of any worker. Never waits: None if there is none."""
        cdef news heard
        if not ledger_receive(self.table, &heard):
            return None
        if heard.verb == VERB_RESUMED:
            return self.receive_resumed(&heard)
        if heard.verb == 0:
            raise_broken(self.table, &heard)
        if heard.verb == VERB_WANT:
            return answer_of(WANT, heard.worker)
        # No bytecode runs, so an interrupt cannot separate receiving an answer from recording it.
        if self.progress.is_kept():
            self.note_answer(heard.worker, heard.slot)
        return answer_in(self.table, heard.slot)

    cdef receive_resumed(self, news *heard):
        if not self.progress.is_told(heard.worker):
            heard.broken = b"it was not asked to resume"
            raise_broken(self.table, heard)
        is_stale = self.progress.note_begun(heard.worker)
        return answer_of(STALE if is_stale else RESUMED, heard.worker)

    cdef note_answer(self, uint32_t worker, uint32_t slot):
        """Note an answer just received, with the worker's note if it must or does have one."""
        cdef const slot_answer *answer = &self.table.entries[slot].answer
        cdef const char *start = NULL
        if self.progress.publishes or answer.snapshot_bytes > 0:
            start = open_slot(self.table, slot) + answer.layout_offset + answer.layout_bytes
        self.progress.note_answer(worker, slot, start, answer.snapshot_bytes)

    def wait(self, double timeout_s):
        """Park until a worker may have news, a signal comes, or a `nudge`; at most timeout_s."""
        cdef control_block *control = segment_control(self.table.base)
        cdef doorbell *bell = &control.doorbell
        cdef int64_t started = platform_now_ns()
        cdef int64_t timeout_ns = <int64_t>(timeout_s * 1e9)
        cdef uint32_t armed, seen
        cdef int outcome = 0
        check_owner(self.table)
        with nogil:
            seen = doorbell_count(bell)
            if not (self.is_nudged or ledger_has_news(self.table)
                    or looks_try(&self.table.looks, &control.may_look, bell, seen)):
                armed = doorbell_arm(bell)
                if not self.is_nudged and not ledger_has_news(self.table):
                    outcome = doorbell_park(bell, armed, timeout_ns)
                doorbell_disarm(bell)
        self.is_nudged = False
        started = platform_now_ns() - started
        self.totals.waited_ns += started
        log_parked(self.table, started)
        if outcome == -EINTR:
            PyErr_CheckSignals()

    def nudge(self):
        """End the `wait` that another thread is in, or the next one; any thread."""
        self.is_nudged = True
        doorbell_ring(&segment_control(self.table.base).doorbell)

    def allow_looks(self, bint may_look):
        """Say whether there is a core for each process that looks before it parks."""
        if not ledger_is_copy(self.table):
            looks_allow(&segment_control(self.table.base).may_look, may_look)

    # Seats, where there may be more of them than workers

    def open_seat(self, uint32_t worker, bint is_open):
        """Say whether `freest` may find a worker; all seats are open at first."""
        self.check_worker(worker)
        seats_open(self.table, worker, is_open)

    def freest(self, uint32_t most):
        """
        Find the worker in an open seat with the fewest unanswered requests, fewer than `most`.

        Returns:
            Its number; -1: none. Then `wait` ends as soon as another one has sat down.
        """
        return seats_freest(self.table, most)

    def is_seated(self, uint32_t worker):
        """Returns True if a worker has sat down that was not reaped since."""
        self.check_worker(worker)
        return seats_is_taken(self.table, worker)

    def share_room(self, uint32_t workers):
        """Tell the workers how many of them share what memory there is."""
        seats_share(self.table, workers)

    def note_wait(self, int64_t waited_ns):
        """Count a wait for a batch that was not on this doorbell."""
        self.totals.waited_ns += waited_ns
        log_parked(self.table, waited_ns)

    def deliver(self, uint32_t slot, uint32_t spill, mover=None, into=None, failed=None,
                bint in_place=False):
        """
        Turn a ready slot into its batch.

        Args:
            spill: The number of the reason to copy the batch to private memory and free the slot
                now; 0: there is none.
            mover: As for `Lent.decode`; then nothing of the batch stays in the slot, and a tensor
                that is met again is the mover's once more.
            in_place: Only small leaves, and tensors that share memory with one before them, are the
                mover's; all else stays in the slot, which devices may read: it is page-locked.
            into: Its attribute `batch` becomes the batch, and `in_slot` False, so that no interrupt
                comes between; None: nothing keeps it.
            failed: Makes what stands in the batch's place of an error that is its objects' own;
                None: it is raised, as an interrupt is.

        Returns:
            The batch; unless spilled its large tensors and arrays are views of the slot, which is
            released when the last of them is gone. In a large batch the small ones are copies.

        Raises:
            WorkerBroken: The layout contradicts itself; the slot is free then.
            RuntimeError: The slot is not ready; nothing has happened.
            MemoryError: No private memory for a spilled batch; the slot stays ready.
        """
        cdef bint stays = mover is None
        cdef Lent lent = self.take_out(slot, spill, stays and spill != 0, stays, True)
        cdef uint64_t small_bytes = NO_LEAF
        if in_place:
            small_bytes = bytes_to_move(self.table, slot, self.scarce_slots)
            small_bytes = small_leaf(&lent.places, small_bytes)
        try:
            batch = decode(&lent.places, lent.payload_bytes, lent.layout, mover, small_bytes,
                           mover is not None)
        except BaseException as error:
            if failed is None or not is_own(error, partial(lent.decode, mover)):
                raise
            batch = failed(error)
        finally:
            if mover is not None and not in_place and lease_aliases(lent.held) == 1:
                # No view of it is left, so no copy to a device reads it, though it is page-locked.
                self.table.entries[slot].is_for_devices = False
            lent.let_go()
        if into is not None:
            into.batch, into.in_slot = batch, False
        return batch

    def lend(self, uint32_t slot, uint32_t spill, into, bint in_place=False):
        """
        Lease a ready slot to copies that read it, without decoding its batch yet.

        Args:
            spill: As for `deliver`.
            into: As for `deliver`, with the `Lent`.
            in_place: Devices may read the slot, which is page-locked, behind the lease's end.
        """
        cdef Lent lent = self.take_out(slot, spill, spill != 0, False, in_place)
        lent.in_place = in_place
        if lent.in_slot:
            self.lending[slot] = lent.ticket
        into.batch, into.in_slot = lent, False

    cdef Lent take_out(self, uint32_t slot, uint32_t spill, bint copies, bint moves, bint fences):
        """Lease a ready slot, and move small leaves out; or copy its batch out and free it."""
        cdef char *start = open_slot(self.table, slot)
        cdef ledger_entry *entry = &self.table.entries[slot]
        cdef slot_answer answer = entry.answer
        cdef bint is_counted
        cdef Lent lent
        try:
            lent = lent_of(slot, entry, start, answer.payload_bytes if copies else
                           bytes_to_move(self.table, slot, self.scarce_slots) if moves else 0)
            lent.offset = segment_slot_offset(&self.table.geometry, slot)
        except WorkerBroken:
            free_slot(self.table, slot)
            raise
        # To move a small one costs nothing, so it does not count as spilled.
        is_counted = spill != 0 and is_worth_a_word(self.table, slot)
        log_take(self.table, slot, spill if is_counted else 0)
        self.totals.spilled += is_counted
        if copies:
            free_slot(self.table, slot)
        else:
            lent.held, lent.in_slot = self.lease_slot(slot, fences), True
        count_batch(&self.totals, &answer)
        return lent

    cdef lease *lease_slot(self, uint32_t slot, bint fences) except NULL:
        """Lease a ready slot; if it is page-locked, copies to a device may read it."""
        cdef lease *leased = ledger_lease(self.table, slot, 1)
        if leased == NULL:
            raise_wrong_state(self.table, slot)
        self.table.entries[slot].is_for_devices = fences and pinned_bytes(self.table, slot) > 0
        return leased

    def discard(self, uint32_t slot):
        """Free a ready slot without delivering its batch."""
        free_slot(self.table, slot)

    def reclaim(self, uint32_t worker):
        """Free the slots of a reaped worker and drop its pending requests."""
        self.progress.forget(worker)
        ledger_reclaim(self.table, worker)

    def recall(self, uint32_t worker):
        """
        Free the slots of a reaped worker and note the requests for its replacement.

        The tickets stand in `progress.recalled` until they are placed again; after them,
        `tell_resumes_again` tells a resume that was not answered.
        """
        self.progress.recall(worker, placed_with(self.table, worker))
        ledger_reclaim(self.table, worker)

    def unanswered(self, uint32_t worker):
        """List the unanswered tickets of a worker, in their order."""
        return sorted(self.progress.recalled_from(worker) + placed_with(self.table, worker))

    def ready_slots(self):
        """List the answers that were received and are still in their slots, each made anew."""
        cdef uint32_t slot
        return [
            answer_in(self.table, slot)
            for slot in range(self.table.geometry.ranges)
            if self.table.entries[slot].state == SLOT_READY
        ]

    def room(self, uint32_t slot, uint64_t want_bytes):
        """Find the largest grant within the budget for a placed slot, after trimming free slots."""
        return budget_room(self.table, slot, want_bytes)

    def grant(self, uint32_t slot, uint64_t grant_bytes):
        """Let a worker fill a placed slot up to grant_bytes, which is no less than before."""
        if not ledger_grant(self.table, slot, grant_bytes):
            raise_wrong_state(self.table, slot)

    def refuse(self, uint32_t slot):
        """Tell a worker that its batch can never fit, or that there will be no memory for it."""
        if not ledger_refuse(self.table, slot):
            raise_wrong_state(self.table, slot)

    def oldest(self):
        """The oldest undelivered ticket, even one to be placed again; None if there is none."""
        cdef uint64_t ticket = ledger_oldest(self.table)
        if self.progress.recalled:
            ticket = min(ticket, <uint64_t>min(self.progress.recalled))
        return None if ticket == <uint64_t>-1 else ticket

    def expect(self, uint64_t batch_bytes):
        """Set how many bytes of each slot are touched ahead."""
        self.table.expect_bytes = batch_bytes

    @property
    def descriptor(self):
        """The segment's file, open as long as this or a lease of a slot is alive."""
        return self.table.fd

    @property
    def slack_bytes(self):
        """How many bytes of pages beyond what batches need may exist; more go back when seen."""
        return self.table.slack_bytes

    @slack_bytes.setter
    def slack_bytes(self, uint64_t slack_bytes):
        self.table.slack_bytes = slack_bytes


def is_dropped(holder):
    """Returns True if nothing but the attribute `ledger` refers to one: its owner did not close."""
    cdef object held = holder.ledger
    return Py_REFCNT(held) == 2   # the attribute's and this one

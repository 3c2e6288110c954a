# The trainer's end of a segment. Each method is one move of csrc/ledger.c or one batch.

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EINTR, EINVAL, EPERM, EPROTO
from libc.stdint cimport int64_t, uint32_t, uint64_t, uint8_t
from posix.mman cimport munmap
from posix.unistd cimport close

from shmloader.core.csrc cimport (
    ANSWER_CYCLIC, ANSWER_KEPT, ORDER_COPY_IN, ORDER_NUMBERED, SLOT_FORKED,
    SLOT_FREE, SLOT_LEASED, SLOT_PLACED, SLOT_READY, SLOT_RETIRED, STEP, STEP_WORDS, VERB_QUIT,
    VERB_RESUME, VERB_RESUMED, VERB_WANT, budget_lock, budget_room, budget_unlock,
    children_forget, children_look, children_look_now, children_watch, demand_peak, doorbell,
    doorbell_arm, doorbell_disarm, doorbell_park, geometry, guard_start, lease_aliases, lease_drop,
    ledger, ledger_close, ledger_collect, ledger_entry, ledger_free, ledger_grant, ledger_grow,
    ledger_has_news, ledger_is_copy, ledger_lease, ledger_new, ledger_oldest, ledger_open,
    ledger_place, ledger_receive, ledger_reclaim, ledger_refuse, ledger_rest, ledger_rest_leased,
    ledger_restart, ledger_stop, ledger_tell, ledger_unread, ledger_unread_of, ledger_unref,
    ledger_untaken, log_parked, log_take, news, platform_now_ns, platform_reserve, policy,
    segment_control,
    segment_slot_offset, segment_worker, slot_answer, worker_block, worker_resume,
)

from shmloader.core.progress import Progress
from shmloader.core.protocol import Kind, Verb
from shmloader.errors import OutOfSharedMemory, WorkerBroken

cdef object READY = Verb.READY
cdef object WANT = Verb.WANT
cdef object RESUMED = Verb.RESUMED
cdef object STALE = Verb.STALE
cdef uint64_t NONE_MOVED = <uint64_t>-1
cdef tuple KINDS = (None, Kind.BATCH, Kind.ERROR, Kind.END, Kind.NOTHING)   # by csrc's number
cdef tuple STATE_NAMES = ("free", "placed", "ready", "leased", "retired", "spare", "forked")


@cython.final
@cython.freelist(8)
@cython.no_gc
cdef class News:
    """
    What a worker told the trainer; only the ledger makes it.

    Attributes:
        verb: A `Verb`; slot and ticket mean nothing for RESUMED and STALE.
        kind: The `Kind` of an answer; None unless the verb is READY.
    """

    cdef readonly uint32_t worker
    cdef readonly object verb
    cdef readonly uint32_t slot
    cdef readonly uint64_t ticket
    cdef readonly object kind

    def __repr__(self):
        return (f"News(worker={self.worker}, verb={self.verb}, slot={self.slot}, "
                f"ticket={self.ticket}, kind={self.kind})")


cdef News make_news(uint32_t worker, object verb, uint32_t slot, uint64_t ticket, object kind):
    cdef News made = News.__new__(News)
    made.worker, made.verb, made.slot, made.ticket, made.kind = worker, verb, slot, ticket, kind
    return made


@cython.final
cdef class Ledger:
    """
    The trainer's private truth about a segment, and its end of all rings.

    Only the thread that iterates may call it. Its batches may be dropped on any thread.

    Attributes:
        waited_ns: Nanoseconds parked in `wait`.
        batches: Batches delivered; bytes: of their payload.
        spilled: Batches that were copied to private memory when they were delivered.
        restarts: Workers that were replaced.
        pickled_bytes: Bytes of the pickles in batches; pickled_batches: how many had one.
        scarce_slots: With no more idle slots than these, up to half of a leased batch is moved
            out of its slot, which then comes back when its largest leaves are gone.
        heals: True if the progress of workers is kept, so that they can be replaced.
        follows: True if the snapshots that come with answers are kept, because a run is resumable.
        publishes: True if each answer must have a snapshot: no replacement goes on without one.
        progress: For each worker, the `Progress` from which its replacement would go on.
        recalled: Ticket -> worker, for the unanswered requests of dead workers, until they are
            placed again.
    """

    cdef ledger *table
    cdef object __weakref__
    cdef readonly uint32_t slots   # in use; spare ranges come on top
    cdef int64_t looked_ns      # when children were looked for
    cdef int64_t memory_looked_ns   # when is_time_to_look() said so
    cdef uint64_t next_ticket   # tickets are placed in order: what lies below was placed
    cdef list resuming          # per worker: how many resumes it has not answered
    cdef set owing              # dead workers with a resume that their replacements are told again
    cdef list seeds             # per worker: the seed of the resume it was told last
    cdef public bint heals
    cdef public bint follows
    cdef public bint publishes
    cdef public uint32_t scarce_slots
    cdef list snapshots         # per slot: the snapshot of its answer, or None
    cdef readonly list progress   # per worker: the Progress from which another would go on
    cdef dict lending             # slot -> ticket of the batch lent last, which no user holds
    cdef readonly dict recalled   # ticket -> worker: to be placed again, since the worker died
    cdef public uint64_t waited_ns
    cdef public uint64_t batches
    cdef public uint64_t bytes
    cdef public uint64_t spilled
    cdef public uint64_t restarts
    cdef public uint64_t pickled_bytes
    cdef public uint64_t pickled_batches

    def __init__(self, int fd, shape, policy numbers, bint guarded=False):
        """
        Map a segment and take it over.

        Args:
            fd: A file of zeros, as long as the shape says; a duplicate is kept.
            shape: The segment's counts and bytes: `workers`, `slots` in use, `spares` (ranges that
                replace retired ones), `range_bytes` of each, `ring_bytes` that the slots may keep,
                `page_bytes` in which the file's pages come.
            numbers: A dict by the names of csrc/policy.h, such as `memory.policy.OF_CORE`.
            guarded: Watch for late uses of slots, as csrc/debug/guard.c says.

        Raises:
            OSError: The file cannot be mapped.
            ValueError: No segment has such numbers.
            BaseException: The error of a signal's handler.
            MemoryError: There is no private memory for the ledger, or for its guard.
        """
        cdef geometry measured
        cdef void *base
        cdef int own_fd
        self.slots = shape.slots
        self.lending = {}
        measure_shape(&measured, shape)
        own_fd = duplicate(fd)
        base = map_segment(own_fd, &measured)
        if base == NULL:
            raise_mapping_error(own_fd, measured.total_bytes)
        STEP("map: mapped")
        try:
            reserve_table(own_fd, &measured)
        except BaseException:
            munmap(base, measured.total_bytes)
            close(own_fd)
            raise
        self.table = ledger_new(<uint8_t *>base, own_fd, &measured, &numbers, self.slots,
                                shape.ring_bytes)
        STEP("map: ledger made")
        if self.table == NULL:
            munmap(base, measured.total_bytes)
            close(own_fd)
            raise MemoryError(f"no memory for a ledger of {measured.ranges} slots")
        children_watch(self.table)
        self.forget_workers()
        if guarded and guard_start(self.table) != 0:
            raise MemoryError(f"no memory for a guard of {measured.ranges} slots")

    def __dealloc__(self):
        if self.table != NULL:
            children_forget(self.table)
            ledger_unref(self.table)

    def place(self, uint32_t worker, uint64_t ticket, index, bint copy_in=False,
              tuple numbers=None):
        """
        Write a request into a free slot and send it to a worker, once for each ticket.

        Args:
            ticket: The batch's turn number; tickets are placed in rising order.
            index: A list of ints, an int, a list of None, or any object that can be pickled.
            copy_in: Have the worker collate in private memory and copy the batch in once.
            numbers: Of the epoch and of the batch in it, if the worker's draws are seeded by them.

        Returns:
            True if it was sent, now or before; False if no slot is free, and nothing happened.

        Raises:
            OutOfSharedMemory: There is no room for the request's pages.
            Exception: The error of pickling an index that is not made of ints.
        """
        cdef Request request
        cdef uint32_t mode = ORDER_COPY_IN if copy_in else 0
        cdef int64_t outcome
        cdef object _kept
        if ticket < self.next_ticket and ticket not in self.recalled:
            return True
        ledger_collect(self.table)
        if self.table.counts[<int>SLOT_FORKED] != 0:
            self.look_for_children()
        if self.table.free_count == 0:
            return False
        if numbers is not None:
            mode |= ORDER_NUMBERED
        _kept = write_request(index, numbers, &request)
        outcome = ledger_place(self.table, worker, ticket, request.kind, request.start,
                               request.length, mode)
        if outcome >= 0:
            self.next_ticket = max(self.next_ticket, ticket + 1)
            self.recalled.pop(ticket, None)
            return True
        if outcome == -EAGAIN or outcome == -EINTR:
            return False
        if outcome == -EPERM:
            self.check_owner()
        if outcome == -EPROTO:
            raise WorkerBroken(f"the ring of worker {worker} was overwritten")
        if outcome == -EINVAL:
            raise RuntimeError(f"no worker {worker} in a segment of {self.table.geometry.workers}")
        raise OutOfSharedMemory(
            f"no room for a request of {request.length} bytes in shared memory "
            f"({errno_name(-outcome)}): free memory or lower batch_size"
        )

    cdef look_for_children(self):
        """Free slots whose children are gone, as often as it can matter."""
        cdef policy *numbers = &self.table.policy
        cdef uint64_t every_ns = (numbers.children_seldom_ns if self.table.free_count
                                  else numbers.children_often_ns)
        cdef int64_t now = platform_now_ns()
        if now - self.looked_ns >= <int64_t>every_ns:
            self.looked_ns = now
            children_look()

    cdef int check_owner(self) except -1:
        """Refuse to change what belongs to the process from which this one was forked."""
        if ledger_is_copy(self.table):
            raise RuntimeError(
                "this segment belongs to the process that made it, and this one was forked from "
                "that: call iter(loader) here"
            )
        return 0

    def tell_resume(self, uint32_t worker, seed):
        """
        Tell a worker to begin the next epoch.

        Args:
            seed: Shared by all data pipes in that epoch; None without a data pipe.

        Raises:
            WorkerBroken: Its ring is full, so it was overwritten: it has room for every order.
        """
        cdef worker_block *block = segment_worker(self.table.base, &self.table.geometry, worker)
        cdef worker_resume resume
        self.check_owner()
        if worker >= self.table.geometry.workers:
            raise RuntimeError(f"no worker {worker} in a segment of {self.table.geometry.workers}")
        resume.has_seed = seed is not None
        resume.seed = seed if seed is not None else 0
        STEP_WORDS("resume: half", &block.resume, &resume, sizeof(worker_resume))
        STEP("resume: written")
        if not ledger_tell(self.table, worker, VERB_RESUME):
            raise WorkerBroken(f"the ring of worker {worker} was overwritten")
        self.resuming[worker] += 1
        self.seeds[worker] = seed
        self.owing.discard(worker)

    def tell_resumes_again(self):
        """Tell replacements the resumes that their dead workers had not answered."""
        for worker in self.owing.difference(self.recalled.values()):
            self.tell_resume(worker, self.seeds[worker])

    def answer_resume(self, uint32_t worker):
        """
        Answer a resume for a dead worker that was idle: its replacement begins in that epoch.

        Returns:
            True if it was answered now; False if the worker owes none, or other answers before it.
        """
        if worker not in self.owing or worker in self.recalled.values():
            return False
        self.owing.discard(worker)
        self.begin_epoch(worker)
        return True

    def tell_quit(self, uint32_t worker):
        """Tell a worker to leave after the orders sent before."""
        ledger_tell(self.table, worker, VERB_QUIT)

    def stop(self):
        """Tell all workers to leave as soon as they look, leaving orders undone."""
        ledger_stop(self.table, True)

    def restart(self):
        """Make the segment ready for new workers; all old ones have been reaped."""
        ledger_restart(self.table)
        self.forget_workers()
        self.next_ticket = 0

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
        """
        Give back pages of held batches as these are dropped: their epoch is over.

        Args:
            keeps_pages: As for `rest`, before which this is called.
        """
        ledger_rest_leased(self.table, not keeps_pages)

    def grow(self):
        """
        Put one slot more into use, if late drops of batches say that the slots are too few.

        Returns:
            True if there is one more now.
        """
        return ledger_grow(self.table)

    cdef forget_workers(self):
        self.resuming = [0] * self.table.geometry.workers
        self.seeds = [None] * self.table.geometry.workers
        self.progress = [Progress() for _ in range(self.table.geometry.workers)]
        self.recalled, self.owing = {}, set()
        self.snapshots = [None] * self.table.geometry.ranges
        self.heals = self.follows = self.publishes = False

    def receive(self):
        """
        Take the next news of any worker; never waits.

        Returns:
            The `News`, or None if there is none.

        Raises:
            WorkerBroken: A worker sent what the protocol does not allow.
        """
        cdef news heard
        cdef ledger_entry *entry
        if not ledger_receive(self.table, &heard):
            return None
        if heard.verb == VERB_RESUMED and self.resuming[heard.worker] == 0:
            heard.verb, heard.broken = 0, b"it was not told to resume"
        if heard.verb == 0:
            raise WorkerBroken(
                f"worker {heard.worker} sent slot {heard.slot}: {heard.broken.decode()}"
                f"{self.ticket_named(&heard)}; its memory was overwritten, perhaps by native code "
                "of the dataset"
            )
        if heard.verb == VERB_RESUMED:
            self.resuming[heard.worker] -= 1
            self.begin_epoch(heard.worker)
            return make_news(heard.worker, STALE if self.resuming[heard.worker] else RESUMED, 0, 0,
                             None)
        entry = &self.table.entries[heard.slot]
        if heard.verb == VERB_WANT:
            return make_news(heard.worker, WANT, heard.slot, entry.ticket, None)
        if self.heals or self.follows:
            self.note_progress(heard.worker, heard.slot)
        return make_news(heard.worker, READY, heard.slot, entry.ticket, KINDS[entry.answer.kind])

    # No bytecode runs below, so an interrupt cannot separate receiving an answer from recording it.

    cdef note_progress(self, uint32_t worker, uint32_t slot):
        """Note an answer just received, and copy the snapshot out of it, if there is one."""
        cdef slot_answer *answer = &self.table.entries[slot].answer
        cdef char *start
        progress = self.progress[worker]
        progress.has_answered = True
        self.snapshots[slot] = None
        if self.publishes or answer.snapshot_bytes > 0:
            start = self.open(slot)
            start += answer.layout_offset + answer.layout_bytes
            progress.before = progress.latest
            progress.latest = PyBytes_FromStringAndSize(start, answer.snapshot_bytes)
            self.snapshots[slot] = progress.latest

    def snapshot_of(self, uint32_t slot):
        """The snapshot that came with the answer in a slot; None if none had to."""
        return self.snapshots[slot] if slot < self.table.geometry.ranges else None

    cdef begin_epoch(self, uint32_t worker):
        """Note that a worker has answered a resume."""
        progress = self.progress[worker]
        if progress.latest is not None or not self.publishes:
            progress.begun, progress.latest, progress.seeds = progress.latest, None, ()
        progress.seeds += (self.seeds[worker],)

    cdef str ticket_named(self, const news *heard):
        """Name the ticket for which the worker writes the slot that it names, if it does."""
        cdef ledger_entry *entry
        if heard.slot < self.table.geometry.ranges:
            entry = &self.table.entries[heard.slot]
            if entry.state == SLOT_PLACED and entry.worker == heard.worker:
                return f" (ticket {entry.ticket})"
        return ""

    def wait(self, double timeout_s):
        """
        Park until some worker may have news, at most timeout_s seconds.

        Raises:
            BaseException: The error of a signal's handler.
        """
        cdef doorbell *bell = &segment_control(self.table.base).doorbell
        cdef int64_t started = platform_now_ns()
        cdef int64_t timeout_ns = <int64_t>(timeout_s * 1e9)
        cdef uint32_t armed
        cdef int outcome = 0
        self.check_owner()
        with nogil:
            armed = doorbell_arm(bell)
            if not ledger_has_news(self.table):
                outcome = doorbell_park(bell, armed, timeout_ns)
            doorbell_disarm(bell)
        started = platform_now_ns() - started
        self.waited_ns += started
        log_parked(self.table, started)
        if outcome == -EINTR:
            PyErr_CheckSignals()

    def deliver(self, uint32_t slot, uint32_t spill, Unpickler, mover=None):
        """
        Turn a ready slot into its batch.

        Args:
            spill: The number of the reason to copy the batch to private memory and free the slot
                now; 0: there is none.
            Unpickler: Class of what builds pickled objects again.
            mover: As for `Lent.decode`; then nothing of the batch stays in the slot.

        Returns:
            The batch; unless spilled its large tensors and arrays are views of the slot, which is
            released when the last of them is gone. In a large batch the small ones are copies.

        Raises:
            WorkerBroken: The layout contradicts itself; the slot is free then.
            RuntimeError: The slot is not ready; nothing has happened.
            MemoryError: No private memory for a spilled batch; the slot stays ready.
        """
        cdef char *start = self.open(slot)
        cdef ledger_entry *entry = &self.table.entries[slot]
        cdef slot_answer answer = entry.answer
        cdef bytes layout = PyBytes_FromStringAndSize(start + answer.layout_offset,
                                                      answer.layout_bytes)
        cdef Places places
        try:
            place_leaves(&places, &entry.lease, start, answer.payload_bytes, layout,
                         1 if spill != 0 else
                         self.part_to_move() if mover is None else NONE_MOVED)
        except WorkerBroken:
            self.free(slot)
            raise
        log_take(self.table, slot, spill)
        if spill != 0:
            self.free(slot)
            self.spilled += 1
        elif ledger_lease(self.table, slot, 1) == NULL:
            drop_blocks(&places)
            self.raise_wrong_state(slot)
        self.count(&answer)
        try:
            return decode(&places, answer.payload_bytes, layout, Unpickler, mover)
        finally:
            drop_blocks(&places)
            if spill == 0:
                lease_drop(&entry.lease)

    def lend(self, uint32_t slot, uint32_t spill, into):
        """
        Lease a ready slot to copies that read it, without decoding its batch yet.

        Args:
            spill: As for `deliver`.
            into: Its attribute `batch` becomes the `Lent`, so that no interrupt comes between.

        Raises:
            WorkerBroken: The layout contradicts itself; the slot is free then.
            RuntimeError: The slot is not ready; nothing has happened.
            MemoryError: No private memory for a spilled batch; the slot stays ready.
        """
        cdef char *start = self.open(slot)
        cdef ledger_entry *entry = &self.table.entries[slot]
        cdef slot_answer answer = entry.answer
        cdef Lent lent = Lent.__new__(Lent)
        lent.slot, lent.ticket, lent.payload_bytes = slot, entry.ticket, answer.payload_bytes
        lent.layout = PyBytes_FromStringAndSize(start + answer.layout_offset, answer.layout_bytes)
        try:
            place_leaves(&lent.places, &entry.lease, start, answer.payload_bytes, lent.layout,
                         1 if spill != 0 else NONE_MOVED)
        except WorkerBroken:
            self.free(slot)
            raise
        lent.is_open = True
        log_take(self.table, slot, spill)
        if spill != 0:
            self.free(slot)
            self.spilled += 1
        elif ledger_lease(self.table, slot, 1) == NULL:
            self.raise_wrong_state(slot)
        else:
            lent.held, lent.in_slot = &entry.lease, True
            self.lending[slot] = lent.ticket
        into.batch = lent
        self.count(&answer)

    cdef void count(self, const slot_answer *answer) noexcept:
        self.batches += 1
        self.bytes += answer.payload_bytes
        self.pickled_bytes += answer.pickled_bytes
        self.pickled_batches += answer.pickled_bytes != 0

    def lock(self, uint32_t slot, uint64_t lock_bytes):
        """
        Make the first bytes of a slot exist, and let none of them be given back until `unlock`.

        Args:
            lock_bytes: Of them; it becomes whole huge pages, and at most the slot's part of
                `ring_bytes`.

        Returns:
            Where the slot begins in this process, and how many bytes; 0 if there is no room.
        """
        cdef uint64_t locked
        if slot >= self.table.geometry.ranges:
            self.raise_wrong_state(slot)
        locked = budget_lock(self.table, slot, lock_bytes)
        return <size_t>self.table.base + segment_slot_offset(&self.table.geometry, slot), locked

    def unlock(self, uint32_t slot):
        """Let the pages of a slot be given back again."""
        if slot >= self.table.geometry.ranges:
            self.raise_wrong_state(slot)
        budget_unlock(self.table, slot)

    cdef uint64_t part_to_move(self) noexcept:
        """Returns n: up to an n-th of a batch that is leased now is moved out of its slot."""
        if count_idle(self.table) > self.scarce_slots:
            return self.table.policy.moved_part
        return self.table.policy.moved_of_last_part

    def discard(self, uint32_t slot):
        """Free a ready slot without delivering its batch."""
        self.free(slot)

    # A mistake of ours: whatever it is, no slot is freed twice, and no batch is handed out twice.

    cdef char *open(self, uint32_t slot) except NULL:
        cdef char *start = <char *>ledger_open(self.table, slot)
        if start == NULL:
            self.raise_wrong_state(slot)
        return start

    cdef int free(self, uint32_t slot) except -1:
        if not ledger_free(self.table, slot):
            self.raise_wrong_state(slot)
        return 0

    cdef int raise_wrong_state(self, uint32_t slot) except -1:
        self.check_owner()
        if slot >= self.table.geometry.ranges:
            raise RuntimeError(f"no slot {slot} in a segment of {self.table.geometry.ranges}")
        raise RuntimeError(
            f"slot {slot} cannot do that: it is {STATE_NAMES[self.table.entries[slot].state]}, and "
            f"was granted {self.table.entries[slot].grant_bytes} bytes"
        )

    def reclaim(self, uint32_t worker):
        """Free the slots of a reaped worker and drop its pending requests."""
        for ticket in self.recalled_from(worker):
            del self.recalled[ticket]
        self.owing.discard(worker)
        self.free_slots_of(worker)

    cdef free_slots_of(self, uint32_t worker):
        ledger_reclaim(self.table, worker)
        self.resuming[worker] = 0

    def recall(self, uint32_t worker):
        """
        Free the slots of a reaped worker and note the requests for its replacement.

        The tickets stand in `recalled` until they are placed again; after them,
        `tell_resumes_again` tells a resume that was not answered.
        """
        self.recalled.update(dict.fromkeys(self.placed_with(worker), worker))
        if self.resuming[worker] > 0:
            self.owing.add(worker)
        self.free_slots_of(worker)

    def unanswered(self, uint32_t worker):
        """List the unanswered tickets of a worker, in their order."""
        return sorted(self.recalled_from(worker) + self.placed_with(worker))

    cdef list placed_with(self, uint32_t worker):
        """List the tickets that were placed with a worker and not answered."""
        cdef uint32_t slot
        return [
            self.table.entries[slot].ticket for slot in range(self.table.geometry.ranges)
            if self.table.entries[slot].state == SLOT_PLACED
            and self.table.entries[slot].worker == worker
        ]

    cdef list recalled_from(self, uint32_t worker):
        return [ticket for ticket, owner in self.recalled.items() if owner == worker]

    def is_resuming(self, uint32_t worker):
        """Returns True if a worker owes the answer to a resume, even one to be told again."""
        return self.resuming[worker] > 0 or worker in self.owing

    @property
    def wanting(self):
        """Number of workers that wait for a larger grant."""
        return self.table.wanting

    def wants(self):
        """List the wants for a larger grant: (slot, ticket, bytes) each."""
        return [
            (slot, self.table.entries[slot].ticket, self.table.entries[slot].want_bytes)
            for slot in range(self.table.geometry.ranges)
            if self.table.entries[slot].want_bytes != 0
        ]

    @property
    def ready(self):
        """Number of answers that were received and are still in their slots."""
        return self.table.counts[<int>SLOT_READY]

    def ready_slots(self):
        """List the answers that were received and are still in their slots, as `News`."""
        cdef uint32_t slot
        return [
            make_news(self.table.entries[slot].worker, READY, slot, self.table.entries[slot].ticket,
                      KINDS[self.table.entries[slot].answer.kind])
            for slot in range(self.table.geometry.ranges)
            if self.table.entries[slot].state == SLOT_READY
        ]

    def untaken(self, uint32_t worker):
        """Count the orders that a worker has not taken yet."""
        return ledger_untaken(self.table, worker)

    def loads(self):
        """List for each worker how many of its orders are neither answered nor taken back."""
        cdef uint32_t workers = self.table.geometry.workers, slot, worker
        cdef list loads = [0] * workers
        for slot in range(self.table.geometry.ranges):
            if self.table.entries[slot].state == SLOT_PLACED:
                loads[self.table.entries[slot].worker] += 1
        for worker in range(workers):
            loads[worker] -= ledger_unread_of(self.table, worker)
        return loads

    @property
    def unread(self):
        """Number of answers that wait in the rings."""
        return ledger_unread(self.table)

    @property
    def retired(self):
        """Number of slots that were taken out of use."""
        return self.table.counts[<int>SLOT_RETIRED]

    @property
    def spares(self):
        """Number of ranges that replace retired slots, used ones included."""
        return self.table.geometry.ranges - self.slots

    @property
    def kept_bytes(self):
        """Bytes of pages in slots that the workers cannot have: leased, retired or forked."""
        return self.table.kept_bytes

    def pages_bytes(self, uint32_t slot):
        """Bytes of pages that a slot has."""
        return self.table.entries[slot].pages_bytes

    def is_kept(self, uint32_t slot):
        """Returns True if the worker that wrote a ready slot still has an alias of it."""
        return (self.table.entries[slot].answer.flags & ANSWER_KEPT) != 0

    def is_cyclic(self, uint32_t slot):
        """Returns True if the batch in a ready slot contains itself."""
        return (self.table.entries[slot].answer.flags & ANSWER_CYCLIC) != 0

    def has_plenty(self, uint32_t slot, uint32_t reserve):
        """
        Returns True if a ready slot may be leased without a closer look.

        Args:
            reserve: So many slots must be left to the workers, and room for as many batches of this
                size.
        """
        cdef ledger_entry *entry = &self.table.entries[slot]
        ledger_collect(self.table)
        return ((entry.answer.flags & ANSWER_KEPT) == 0 and self.table.wanting == 0
                and count_idle(self.table) > reserve
                and self.table.kept_bytes + (1 + <uint64_t>reserve) * (entry.pages_bytes + 1)
                <= self.table.ring_bytes)

    def room(self, uint32_t slot, uint64_t want_bytes):
        """Find the largest grant within the budget for a placed slot, after trimming free slots."""
        return budget_room(self.table, slot, want_bytes)

    @property
    def shorts(self):
        """Number of workers that find no memory for pages which they were granted."""
        return self.table.shorts

    @property
    def has_demands(self):
        """True if workers wait for a larger grant, or find no memory for what they were granted."""
        return self.table.wanting + self.table.shorts > 0

    def short_slots(self):
        """List the slots of those workers: (slot, ticket) each."""
        return [
            (slot, self.table.entries[slot].ticket)
            for slot in range(self.table.geometry.ranges)
            if self.table.entries[slot].short_bytes != 0
        ]

    def grant(self, uint32_t slot, uint64_t grant_bytes):
        """Let a worker fill a placed slot up to grant_bytes, which is no less than before."""
        if not ledger_grant(self.table, slot, grant_bytes):
            self.raise_wrong_state(slot)

    def refuse(self, uint32_t slot):
        """Tell a worker that its batch can never fit, or that there will be no memory for it."""
        if not ledger_refuse(self.table, slot):
            self.raise_wrong_state(slot)

    def oldest(self):
        """The oldest undelivered ticket, even one to be placed again; None if there is none."""
        cdef uint64_t ticket = ledger_oldest(self.table)
        if self.recalled:
            ticket = min(ticket, <uint64_t>min(self.recalled))
        return None if ticket == <uint64_t>-1 else ticket

    def expect(self, uint64_t batch_bytes):
        """Set how many bytes of each slot are touched ahead."""
        self.table.expect_bytes = batch_bytes

    def held(self):
        """List the slots that users hold: (ticket, seconds since delivery, aliases) each."""
        cdef uint64_t now = platform_now_ns()
        ledger_collect(self.table)
        return [
            (self.table.entries[slot].ticket, (now - self.table.entries[slot].leased_ns) / 1e9,
             lease_aliases(&self.table.entries[slot].lease))
            for slot in range(self.table.geometry.ranges)
            if self.table.entries[slot].state == SLOT_LEASED
            and self.lending.get(slot) != self.table.entries[slot].ticket
        ]

    def counts(self):
        """Count the slots in each state, by its name."""
        ledger_collect(self.table)
        children_look()
        return {name: self.table.counts[i] for i, name in enumerate(STATE_NAMES)}

    def idle_slots(self):
        """Count the slots that keep the workers busy: free, placed or ready."""
        ledger_collect(self.table)
        return count_idle(self.table)

    @property
    def ring_bytes(self):
        """Ceiling in bytes for what the slots keep."""
        return self.table.ring_bytes

    @property
    def range_bytes(self):
        """Length in bytes of each slot's range."""
        return self.table.geometry.range_bytes

    @property
    def descriptor(self):
        """The segment's file, open as long as this or a lease of a slot is alive."""
        return self.table.fd

    @property
    def resident_bytes(self):
        """Bytes of pages that the slots are known to have."""
        return self.table.existing_bytes

    def is_time_to_look(self):
        """Returns True now and then while there are many pages: is there memory for them?"""
        cdef int64_t now
        if self.table.existing_bytes < self.table.policy.look_from_bytes:
            return False
        now = platform_now_ns()
        if now - self.memory_looked_ns < <int64_t>self.table.policy.look_ns:
            return False
        self.memory_looked_ns = now
        return True

    @property
    def peak_bytes(self):
        """The most bytes that batches in use needed at once lately."""
        return demand_peak(&self.table.demand)

    @property
    def slack_bytes(self):
        """How many bytes of pages beyond what batches need may exist; more go back when seen."""
        return self.table.slack_bytes

    @slack_bytes.setter
    def slack_bytes(self, uint64_t slack_bytes):
        self.table.slack_bytes = slack_bytes


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


cdef uint32_t count_idle(const ledger *table) noexcept:
    return (table.counts[<int>SLOT_FREE] + table.counts[<int>SLOT_PLACED]
            + table.counts[<int>SLOT_READY])

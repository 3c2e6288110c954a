# What the trainer and its workers did lately: the trainer's notes, and reading all of them.

cdef dict SEGMENT_STATES = {"live": SEGMENT_LIVE, "idle": SEGMENT_IDLE, "closed": SEGMENT_CLOSED}


def view_layout():
    """
    Describe the bytes that viewers may read of a segment.

    Returns:
        A dict: `checksum` of what follows, `magic`, the numbers that stand for what is `unknown`,
        and under `parts` for each struct its `bytes` and `fields`, {name: (numpy's format, offset
        in bytes)}. The parts `control` and `worker` say where other structs begin in a block.
    """
    cdef size_t i
    parts = {}
    for i in range(view_fields_count):
        part = parts.setdefault(view_fields[i].part.decode(), {"bytes": 0, "fields": {}})
        part["bytes"] = view_fields[i].part_bytes
        part["fields"][view_fields[i].name.decode()] = (view_fields[i].format.decode(),
                                                        view_fields[i].offset)
    unknown = {"number": <uint64_t>VIEW_UNKNOWN, "index": <int64_t>VIEW_UNKNOWN_INDEX,
               "position": <uint32_t>VIEW_WHOLE_BATCH}
    return {"checksum": view_layout_sum(), "magic": <uint64_t>VIEW_MAGIC, "unknown": unknown,
            "parts": parts}


@cython.final
cdef class BatchLog:
    """
    The notes of an iterator's trainer, and what its segment says of the last batches.

    Only the thread that iterates may note; reading may be done on any thread with the
    interpreter's lock.
    """

    cdef Ledger ledger
    cdef bint is_closed   # the segment may be another iterator's: nothing is noted any more

    def __init__(self, Ledger ledger):
        """Note in the segment of a ledger."""
        self.ledger = ledger

    def name(self, about):
        """
        Say for viewers which segment this is, and that it is live.

        Args:
            about: `loader`, its number in its process from 1; `owner_pid`; `owner_start`, when that
                process began, in clock ticks after boot, or 0; `label` and `about`, bytes, of which
                48 and 512 are kept.
        """
        cdef nameplate known
        cdef bytes label = about["label"][:VIEW_LABEL_BYTES]
        cdef bytes text = about["about"][:VIEW_ABOUT_BYTES]
        memset(&known, 0, sizeof(nameplate))
        known.loader, known.owner_pid = about["loader"], about["owner_pid"]
        known.owner_start = about["owner_start"]
        memcpy(known.label, PyBytes_AS_STRING(label), PyBytes_GET_SIZE(label))
        memcpy(known.about, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
        log_name(self.ledger.table, &known)

    def show_as(self, str state):
        """Say for viewers whether an iterator uses the segment: "live", "idle" or "closed"."""
        log_segment(self.ledger.table, SEGMENT_STATES[state])

    def close(self):
        """Note nothing from now on: the segment may go to another iterator."""
        self.is_closed = True

    def begin_epoch(self, uint64_t number, length, uint64_t resumed_at, uint64_t begun_ns):
        """
        Begin an epoch.

        Args:
            number: Of the loader's epochs, from 1.
            length: How many batches it will have; None if that is not known.
            resumed_at: How many of them an earlier run delivered.
            begun_ns: When iter() was called, by the monotonic clock.
        """
        log_begin(self.ledger.table, number,
                  <uint64_t>VIEW_UNKNOWN if length is None else length, resumed_at, begun_ns)

    def end_epoch(self):
        """End the epoch, or break it off."""
        if not self.is_closed:
            log_end(self.ledger.table)

    def ask(self):
        """Note that next() was called."""
        if not self.is_closed:
            log_ask(self.ledger.table)

    cpdef returned(self):
        """Note that next() raises; with a batch `Delivered.hand_out` notes that it returns."""
        if not self.is_closed:
            log_return(self.ledger.table)

    def put_aside(self):
        """Take back the note of the batch just delivered, which next() will not return now."""
        cdef log *notes = &self.ledger.table.log
        notes.has_draft = False
        return PyBytes_FromStringAndSize(<char *>&notes.draft, sizeof(log_record))

    def take_up(self, bytes note):
        """Note that next() returns a batch whose note was put aside."""
        cdef log *notes = &self.ledger.table.log
        memcpy(&notes.draft, PyBytes_AS_STRING(note), sizeof(log_record))
        notes.has_draft = True
        notes.draft_slot = <uint32_t>-1

    def records(self):
        """Copy the records of the last batches out: bytes, as `view_layout` describes a record."""
        ledger_collect(self.ledger.table)
        return PyBytes_FromStringAndSize(
            <char *>segment_record(self.ledger.table.base, &self.ledger.table.geometry, 0),
            LOG_RECORDS * sizeof(log_record),
        )

    def view(self):
        """Copy out what viewers are told of this epoch or the last, as `view_layout` says."""
        return PyBytes_FromStringAndSize(<char *>&self.ledger.table.log.view, sizeof(trainer_view))

    def durations(self):
        """
        Look up how long each next() and each step of this epoch took.

        Returns:
            For both (sum, longest, counts), the counts as pairs (duration to within 1/32, how
            often), shortest first; all durations in nanoseconds.
        """
        cdef log *notes = &self.ledger.table.log
        return read_histogram(&notes.nexts), read_histogram(&notes.steps)

    def clocks(self):
        """Copy out the clocks of all workers, which run since the segment was made."""
        cdef uint32_t worker
        cdef worker_block *block
        cdef list found = []
        for worker in range(self.ledger.table.geometry.workers):
            block = segment_worker(self.ledger.table.base, &self.ledger.table.geometry, worker)
            sums = PyBytes_FromStringAndSize(NULL, sizeof(worker_clock))
            words_read(PyBytes_AS_STRING(sums), &block.clock, sizeof(worker_clock))
            found.append(sums)
        return b"".join(found)

    def replayed(self, uint32_t worker):
        """Look up how many batches a resumed worker has fetched again, and of how many; or 0, 0."""
        cdef worker_view view
        cdef worker_block *block = segment_worker(self.ledger.table.base,
                                                  &self.ledger.table.geometry, worker)
        if not view_read(&view.state, &block.view.sequence,
                         sizeof(worker_view) - sizeof(uint64_t)):
            return 0, 0  # it was in the middle of writing it
        if view.state > WORKER_IDLE or view.position >= view.samples:
            return 0, 0
        return view.position, view.samples


cdef tuple read_histogram(const histogram *found):
    cdef uint32_t bucket
    counts = tuple([(histogram_middle(bucket), found.buckets[bucket])
                    for bucket in range(HISTOGRAM_BUCKETS) if found.buckets[bucket] != 0])
    return (found.sum_ns, found.longest_ns, counts)

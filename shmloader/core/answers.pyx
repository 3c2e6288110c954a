# What the trainer hears of a worker.

from shmloader.core.protocol import Kind, Verb

cdef object WANT = Verb.WANT
cdef object RESUMED = Verb.RESUMED
cdef object STALE = Verb.STALE
cdef tuple KINDS = (None, Kind.BATCH, Kind.ERROR, Kind.END, Kind.NOTHING)   # by csrc's number


@cython.final
@cython.freelist(8)
cdef class Answer:
    """
    What a worker told the trainer, and what becomes of a batch until it is delivered.

    Attributes:
        kind: The `Kind` of what it holds; a `Verb` if it is no answer to a request.
        worker: Number of the worker that sent it; -1: none did.
        ticket: Of the request; -1 if it answers none.
        key: By which the client knows the request.
        slot: Where it lies, as long as it is `in_slot`.
        batch: What became of it outside of its slot.
        log: What the log noted of it, while it waits outside of its slot.
        snapshot: What the worker noted for others, once it is out of its slot.
    """

    cdef readonly object kind
    cdef readonly int64_t worker, ticket, slot
    cdef public object key, batch, log, snapshot
    cdef public bint in_slot

    def __init__(self, kind, int64_t worker, int64_t ticket=-1, key=None, int64_t slot=-1):
        """Have an answer that no ring brought."""
        self.kind, self.worker, self.ticket = kind, worker, ticket
        self.key, self.slot, self.in_slot = key, slot, slot >= 0

    def __repr__(self):
        return (f"Answer(kind={self.kind}, worker={self.worker}, ticket={self.ticket}, "
                f"key={self.key!r}, slot={self.slot})")


cdef Answer answer_of(object kind, uint32_t worker):
    cdef Answer made = Answer.__new__(Answer)
    made.kind, made.worker, made.ticket, made.slot = kind, worker, -1, -1
    return made


cdef Answer answer_in(ledger *table, uint32_t slot):
    """What lies in a ready slot."""
    cdef const ledger_entry *entry = &table.entries[slot]
    cdef Answer made = answer_of(KINDS[entry.answer.kind], entry.worker)
    made.ticket, made.slot, made.in_slot = <int64_t>entry.ticket, slot, True
    return made

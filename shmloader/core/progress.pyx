# Where each worker is, so that another one, or another run, can go on from there: the notes that
# came with answers, and what a replacement has to be told again. Nothing here reads a note, and
# nothing touches the segment.

from shmloader.core.past import Past

# Of words since the last answer, what a replacement is told again at most; behind more it is lost.
cdef enum:
    MOST_WORDS = 256


@cython.final
cdef class Progress:
    """
    What the trainer keeps of its workers, to replace them or to resume a run; the ledger's.

    Attributes:
        heals: True if it is kept so that dead workers can be replaced.
        follows: True if it is kept because a run is resumable.
        publishes: True if each answer must have a note: no replacement goes on without one.
        repeats: True if what a word begins depends on those before it; otherwise the last one
            tells a replacement all.
        pasts: By worker, the `Past` from which its replacement would go on.
        last_notes: By worker, the note of the last answer that was received; None if it had none.
        recalled: Ticket -> worker, for the unanswered requests of dead workers, until they are
            placed again.
    """

    cdef public bint heals
    cdef public bint follows
    cdef public bint publishes
    cdef public bint repeats
    cdef readonly list pasts       # by worker
    cdef readonly list last_notes  # by worker
    cdef readonly dict recalled    # ticket -> worker
    cdef list notes                # by slot: that of its answer, or None
    cdef list words                # by worker: what it was told last
    cdef list untold               # by worker: how many of its words it has not answered
    cdef set owing                 # dead workers whose last word their replacements are told again

    cdef begin(self, uint32_t workers, uint32_t ranges):
        """Forget everything, because all workers are new."""
        self.heals = self.follows = self.publishes = False
        self.repeats = True
        self.pasts = [Past() for _ in range(workers)]
        self.last_notes, self.notes = [None] * workers, [None] * ranges
        self.words, self.untold = [None] * workers, [0] * workers
        self.recalled, self.owing = {}, set()

    def note_of(self, uint32_t slot):
        """The note that came with the answer in a slot; None if none had to."""
        return self.notes[slot] if slot < len(self.notes) else None

    cdef bint is_kept(self) noexcept:
        """Returns True if answers have to be noted."""
        return self.heals or self.follows

    cdef note_answer(self, uint32_t worker, uint32_t slot, const char *start, uint32_t length):
        """Note an answer just received; start is NULL if there is no note to copy out."""
        past = self.pasts[worker]
        past.has_answered = True
        note = None
        if start != NULL:
            past.before = past.latest
            past.latest = note = PyBytes_FromStringAndSize(start, length)
        self.notes[slot] = self.last_notes[worker] = note

    def renew(self, uint32_t worker):
        """Forget a reaped worker: who sits there next begins where any worker begins."""
        self.pasts[worker], self.last_notes[worker] = Past(), None
        self.forget(worker)

    # What workers are told

    cdef note_told(self, uint32_t worker, word):
        """Note that a worker was told to begin an epoch."""
        self.untold[worker] += 1
        self.words[worker] = word
        self.owing.discard(worker)

    cdef bint is_told(self, uint32_t worker) except -1:
        """Returns True if there is a word that a worker has not answered."""
        return self.untold[worker] > 0

    cdef bint note_begun(self, uint32_t worker) except -1:
        """Note the answer to a word. Returns True if it is stale, because there is another word."""
        self.untold[worker] -= 1
        self.begin_epoch(worker)
        return self.untold[worker] > 0

    cdef begin_epoch(self, uint32_t worker):
        past = self.pasts[worker]
        if past.latest is not None or not self.publishes:
            past.begun, past.latest, past.seeds = past.latest, None, ()
        if not self.repeats:
            past.seeds = ()
        elif len(past.seeds) == MOST_WORDS:
            past.lose()
        past.seeds += (self.words[worker],)

    def is_resuming(self, uint32_t worker):
        """Returns True if a worker owes the answer to a word, even one to be told again."""
        return self.untold[worker] > 0 or worker in self.owing

    # Deaths

    cdef forget(self, uint32_t worker):
        """Drop what a reaped worker has not answered."""
        for ticket in self.recalled_from(worker):
            del self.recalled[ticket]
        self.owing.discard(worker)
        self.untold[worker] = 0

    cdef recall(self, uint32_t worker, list tickets):
        """Note what a reaped worker has not answered, for its replacement."""
        self.recalled.update(dict.fromkeys(tickets, worker))
        if self.untold[worker] > 0:
            self.owing.add(worker)
        self.untold[worker] = 0

    cdef list recalled_from(self, uint32_t worker):
        return [ticket for ticket, owner in self.recalled.items() if owner == worker]

    cdef to_tell_again(self):
        """Find the replacements that have all of their requests again, and owe an answer."""
        return self.owing.difference(self.recalled.values())

    def answer_resume(self, uint32_t worker):
        """
        Answer a word for a dead worker that was idle: its replacement begins in that epoch.

        Returns:
            True if it was answered now; False if the worker owes none, or other answers before it.
        """
        if worker not in self.owing or worker in self.recalled.values():
            return False
        self.owing.discard(worker)
        self.begin_epoch(worker)
        return True

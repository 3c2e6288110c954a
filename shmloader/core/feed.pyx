# One end of what a publisher and one subscriber share: news one way, replies the other.

import os

from shmloader.errors import WorkerBroken


@cython.final
cdef class Feed:
    """
    A publisher's or a subscriber's end of their file. In a forked child it says nothing.

    Attributes:
        PLACES: How many batches may be told and not returned.
        AREA: Where that part of the file begins which neither end maps.
        descriptor: The file.
        in_hand: What `take` took and neither `give_back` nor `drop` has settled; a `Posted`.
    """

    PLACES = FEED_PLACES
    AREA = feed_bytes()

    cdef feed_block *block
    cdef ring_writer writer
    cdef ring_reader reader
    cdef uint64_t generation   # of the process whose end it is
    cdef uint64_t newest       # the epoch that was told last
    cdef looks looks           # the subscriber's, at its doorbell
    cdef readonly int descriptor
    cdef readonly Posted in_hand

    def __cinit__(self):
        self.descriptor = -1

    def __init__(self, int fd, bint publishes):
        """
        Map the file.

        Args:
            fd: A duplicate is kept. A publisher gives it filled with zeros.
            publishes: True at the publisher's end.

        Raises:
            OSError: It cannot be mapped.
            ValueError: It is too short.
        """
        cdef void *base
        if os.fstat(fd).st_size < <int64_t>feed_bytes():
            raise ValueError("the file that a publisher sent is too short")
        self.descriptor = duplicate(fd)
        base = mmap(NULL, feed_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, self.descriptor, 0)
        if base == MAP_FAILED:
            raise OSError(errno, "cannot map what a publisher and a subscriber share")
        self.block = <feed_block *>base
        self.generation = generation_now()
        STEP("feed: mapped")
        if publishes:
            ring_init(feed_news_ring(self.block), 0)
            ring_init(feed_reply_ring(self.block), 0)
            self.writer = ring_open_writer(feed_news_ring(self.block), FEED_CAPACITY)
            self.reader = ring_open_reader(feed_reply_ring(self.block), FEED_CAPACITY)
        else:
            self.writer = ring_open_writer(feed_reply_ring(self.block), FEED_CAPACITY)
            self.reader = ring_open_reader(feed_news_ring(self.block), FEED_CAPACITY)

    def __dealloc__(self):
        if self.block != NULL:
            munmap(self.block, feed_bytes())
        if self.descriptor >= 0:
            close(self.descriptor)

    cdef bint is_copy(self) noexcept:
        """Returns True in a forked child of the process whose end it is."""
        return self.generation != generation_now()

    cdef bint push(self, uint32_t verb, uint32_t number) noexcept:
        """Returns False if the ring is full: nothing has happened."""
        return self.is_copy() or ring_push(&self.writer, cell_make(verb, number & SLOT_MASK))

    # The publisher's end

    def allow_looks(self, bint may_look):
        """Say whether there is a core for each process that looks before it parks."""
        if not self.is_copy():
            looks_allow(&self.block.may_look, may_look)

    def say(self, uint32_t word, uint64_t number):
        """Tell a word about an epoch. Returns False if the ring is full: nothing has happened."""
        if not self.push(word, <uint32_t>number):
            return False
        if word == FEED_BEGIN:
            self.newest = number
        doorbell_ring(&self.block.doorbell)
        return True

    def post(self, uint32_t place, Posted posted, uint32_t word):
        """
        Tell where a batch is, or the bytes of an error.

        Args:
            place: One that is free.
            word: `Word.BATCH` or `Word.FAILED`.

        Returns:
            False if the ring is full: nothing has happened.
        """
        cdef feed_entry entry
        if place >= FEED_PLACES:
            raise ValueError(f"no position {place}: there are {FEED_PLACES}")
        if self.is_copy():
            return True
        memset(&entry, 0, sizeof(feed_entry))
        entry.segment, entry.offset, entry.answer = posted.segment, posted.offset, posted.answer
        STEP_WORDS("feed: half an entry", feed_entry_at(self.block, place), &entry,
                   sizeof(feed_entry))
        STEP("feed: entry")
        return self.say(word, place)

    def replies(self):
        """
        List what the subscriber has replied since the last call: (`Reply`'s number, number) each.

        An epoch has the number by which it was told of.

        Raises:
            WorkerBroken: Its ring holds what it cannot hold.
        """
        cdef uint32_t cell = 0
        cdef list found = []
        while not self.is_copy() and ring_has_value(&self.reader):
            if ring_is_overrun(&self.reader):
                raise WorkerBroken("the replies of a subscriber were overwritten")
            ring_pop(&self.reader, &cell)
            if cell_verb(cell) == FEED_SKIP:
                found.append((FEED_SKIP, feed_epoch(self.newest, cell_slot(cell))))
            else:
                found.append((cell_verb(cell), cell_slot(cell)))
        return found

    def give_up(self):
        """Say that the subscriber is given up, before any lease ends that it may still read."""
        if not self.is_copy():
            feed_give_up(self.block)
            doorbell_ring(&self.block.doorbell)

    # The subscriber's end

    def looked(self):
        """Count the looks before parking that found a ring, those that found none, and their ns."""
        return self.looks.found_count, self.looks.vain_count, self.looks.ns

    def take(self, double timeout_s):
        """
        Take the next word in hand, unless one is, and wait for it.

        Args:
            timeout_s: Longest wait, in seconds; 0 looks once.

        Returns:
            False if there was none in time.

        Raises:
            WorkerBroken: The ring holds what it cannot hold.
            BaseException: The error of a signal's handler.
        """
        cdef uint32_t armed, seen = doorbell_count(&self.block.doorbell)
        cdef int64_t timeout_ns = <int64_t>(timeout_s * 1e9)
        cdef int outcome = 0
        if self.in_hand is None and not ring_has_value(&self.reader) and timeout_ns > 0:
            with nogil:
                if not looks_try(&self.looks, &self.block.may_look, &self.block.doorbell, seen):
                    armed = doorbell_arm(&self.block.doorbell)
                    if not ring_has_value(&self.reader) and not feed_is_given_up(self.block):
                        outcome = doorbell_park(&self.block.doorbell, armed, timeout_ns)
                    doorbell_disarm(&self.block.doorbell)
            if outcome == -EINTR:
                PyErr_CheckSignals()
        return self.take_now()

    cdef bint take_now(self) except -1:
        cdef uint32_t cell = 0
        cdef feed_entry entry
        cdef Posted posted
        if self.in_hand is not None:
            return True   # a signal's handler has taken it
        if self.is_copy() or not ring_has_value(&self.reader):
            return False
        if ring_is_overrun(&self.reader):
            raise WorkerBroken("the messages of a publisher were overwritten")
        posted = Posted.__new__(Posted)
        ring_pop(&self.reader, &cell)
        posted.verb, posted.place = cell_verb(cell), cell_slot(cell)
        if posted.verb == FEED_BATCH or posted.verb == FEED_FAILED:
            if posted.place >= FEED_PLACES:
                raise WorkerBroken("the messages of a publisher were overwritten")
            words_read(&entry, feed_entry_at(self.block, posted.place), sizeof(feed_entry))
            posted.segment, posted.offset = entry.segment, entry.offset
            posted.answer = entry.answer
        self.in_hand = posted
        STEP("feed: in hand")
        return True

    def give_back(self):
        """Let the publisher have the place in hand back: what lay there was read."""
        cdef Posted posted = self.in_hand
        self.in_hand = None
        if posted is not None:
            self.push(FEED_RETURN, posted.place)
            STEP("feed: given back")

    def drop(self):
        """Put down what is in hand, of which the publisher knows that it is not read."""
        self.in_hand = None

    def reply(self, uint32_t reply, uint32_t number):
        """Say something else. Returns False if the ring is full: nothing has happened."""
        return self.push(reply, number)

    @property
    def is_given_up(self):
        """True if what was copied before may be torn."""
        return feed_is_given_up(self.block)

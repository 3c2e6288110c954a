# Which batches of an epoch were delivered, and a checksum of their indices.
#
# A batch's number is its place in the order of draws; torch's task is how often was drawn since
# iter(). They differ in an epoch that was resumed. The checksum is a sum over batches, so it is the
# same in whatever order they were delivered.
#
# Key invariant: a batch counts if and only if next() has returned it. An interrupt comes between
# two bytecodes, or in a call that looks for signals, so from the count to the caller is neither:
# `HandsOut.__next__` counts, and returns to the bytecode that wanted the batch.

import copy
import hashlib
import marshal

cdef enum:
    CHUNK = 4096   # requests that are replayed before the caller is asked again

# Steele, Lea and Flood's mixing of 64 bits (splitmix64), and its increment.
cdef uint64_t FIRST_FACTOR = <uint64_t>0xBF58476D1CE4E5B9
cdef uint64_t SECOND_FACTOR = <uint64_t>0x94D049BB133111EB
cdef uint64_t STRIDE = <uint64_t>0x9E3779B97F4A7C15
cdef uint64_t POSITIVE = <uint64_t>0x7FFFFFFFFFFFFFFF   # what any format of a checkpoint can hold


cdef inline uint64_t mix(uint64_t word) noexcept:
    word = (word ^ (word >> 30)) * FIRST_FACTOR
    word = (word ^ (word >> 27)) * SECOND_FACTOR
    return word ^ (word >> 31)


cdef inline uint64_t mix_at(int64_t index, uint64_t place) noexcept:
    # One multiplication, and none waits for another: 1 ns an index.
    cdef uint64_t word = <uint64_t>index + (place + 1) * STRIDE
    word = (word ^ (word >> 29)) * FIRST_FACTOR
    return word ^ (word >> 32)


cdef uint64_t sum_numbers(const int64_t *start, Py_ssize_t count) noexcept:
    cdef uint64_t total = <uint64_t>count
    cdef Py_ssize_t place
    for place in range(count):
        total += mix_at(start[place], <uint64_t>place)
    return total


cdef bint sum_ints(list numbers, uint64_t *total) except -1:
    """Sum a list up as `sum_numbers`. Returns False if not all are ints that fit."""
    cdef Py_ssize_t place, count = len(numbers)
    cdef int64_t number
    cdef int overflow = 0
    total[0] = <uint64_t>count
    for place in range(count):
        item = numbers[place]
        if type(item) is not int:
            return False
        number = PyLong_AsLongLongAndOverflow(item, &overflow)
        if overflow:
            return False
        total[0] += mix_at(number, <uint64_t>place)
    return True


cdef uint64_t sum_request(index):
    """A checksum of a request; 0 for what has no value that can be compared in another process."""
    cdef uint64_t total
    cdef int64_t number
    cdef int overflow = 0
    if type(index) is Indices:
        return sum_numbers((<Indices>index).start, (<Indices>index).count)
    if type(index) is list:
        if sum_ints(<list>index, &total):
            return total
    elif type(index) is int:
        number = PyLong_AsLongLongAndOverflow(index, &overflow)
        if not overflow:
            return sum_numbers(&number, 1)
    try:
        # Version 2 writes values alone: not which objects are one, nor which strings are interned.
        digest = hashlib.blake2b(marshal.dumps(index, 2), digest_size=8).digest()
    except Exception:
        return 0
    return <uint64_t>int.from_bytes(digest, "little")


cdef inline uint64_t sum_batch(uint64_t request, int64_t number) noexcept:
    return mix(request + <uint64_t>number * STRIDE)


cdef class InHand


@cython.final
cdef class Delivered:
    """
    The batches of one epoch that were delivered, each once in the order of their numbers or not.

    Attributes:
        count: Batches delivered.
        low: All numbers below were delivered.
        high: None from this number on was.
        last_worker: The worker of the last one; -1 before the first.
        by_worker: For each worker, how many of its batches were delivered.
        snapshots: For each worker, the snapshot that came with the last of them, or None.
        sampler: The last state of the sampler that is not above `low`; None if it has none.
        sampler_at: How many batches it had drawn then.
        sampler_sum: The checksum of these.
        drawn_task: The last one that was drawn for; -1: none.
    """

    cdef readonly int64_t count      # batches delivered
    cdef readonly int64_t low        # all numbers below were delivered
    cdef readonly int64_t high       # and none from this one on
    cdef readonly int64_t last_worker
    cdef readonly list by_worker     # per worker: how many batches of it were
    cdef readonly list snapshots     # per worker: the one that came with the last of them, or None
    cdef readonly bytes sampler      # a state of the sampler; None: it has none
    cdef readonly int64_t sampler_at  # how many batches it had drawn then
    cdef uint64_t sum_then           # of all of these
    cdef uint64_t sum                # of what was delivered
    cdef uint64_t drawn_sum          # of that and all that was drawn behind it
    cdef readonly int64_t drawn_task
    cdef object drawn                # its request
    cdef bint is_numbered            # requests name their samples
    cdef list gaps                   # numbers of the first tasks; later ones follow each other
    cdef int64_t base                # number of the first task that follows
    cdef set early                   # delivered numbers above `low`
    cdef dict sums                   # task -> checksum of its indices
    cdef dict states                 # number -> state of the sampler after it, and `drawn_sum`

    # The last delivery, and what it replaced.
    cdef bint has_last               # there was one since this was made
    cdef int64_t last_number         # of its batch; only if is_numbered
    cdef uint64_t last_sum
    cdef int64_t low_before, high_before, worker_before, sampler_at_before
    cdef uint64_t sum_then_before
    cdef bytes sampler_before
    cdef object snapshot_before      # that worker's

    def __init__(self, Py_ssize_t workers, bint is_numbered, list gaps=None, int64_t base=0,
                 list by_worker=None, int64_t last_worker=-1):
        """
        Begin an epoch, or go on in one.

        Args:
            is_numbered: Requests name their samples; otherwise a batch's number means nothing.
            gaps: Numbers of the batches that were drawn before `base` and not delivered, rising.
            base: How many batches were drawn before.
            by_worker: How many batches of each worker were delivered before.
        """
        self.is_numbered = is_numbered
        self.gaps = [] if gaps is None else gaps
        self.base = self.high = base
        self.low = self.gaps[0] if self.gaps else base
        self.early = set(range(self.low, base)).difference(self.gaps)
        self.by_worker = [0] * max(workers, 1) if by_worker is None else list(by_worker)
        self.count = base - len(self.gaps) if is_numbered else sum(self.by_worker)
        self.snapshots = [None] * max(workers, 1)
        self.last_worker = last_worker
        self.sums, self.states = {}, {}
        self.drawn_task = -1

    @property
    def checksum(self):
        """Of the indices of all batches delivered, as an int of 63 bits."""
        return self.sum & POSITIVE

    @property
    def sampler_sum(self):
        """The checksum of what the sampler had drawn in the state that is noted."""
        return self.sum_then & POSITIVE

    def start(self, bytes sampler, int64_t at=0, uint64_t checksum=0):
        """Note the state of the sampler when it had drawn so many batches, with this checksum."""
        self.sampler, self.sampler_at, self.sum_then = sampler, at, checksum

    def trust(self, uint64_t checksum):
        """Take over the checksum of what was delivered before."""
        self.sum = self.drawn_sum = checksum

    cpdef int64_t number_of(self, int64_t task) except -1:
        """The number of a batch in its epoch."""
        cdef Py_ssize_t gaps = len(self.gaps)
        return self.gaps[task] if task < gaps else self.base + task - gaps

    def draw(self, int64_t task, index, bytes state=None):
        """Note what was drawn for a task, and the sampler's state after it."""
        cdef uint64_t request
        cdef int64_t number
        if self.is_numbered:
            number, request = self.number_of(task), sum_request(index)
            self.sums[task] = request
            self.drawn_sum += sum_batch(request, number)
            # Gaps were drawn before: the sampler is not behind them, but behind all.
            if state is not None and task >= len(self.gaps):
                self.states[number] = state, self.drawn_sum

    def draw_from(self, requests, sender, order):
        """
        Draw the request of the next task, and note it; again if an interrupt has kept it from that.

        Args:
            requests: An iterator.
            sender: Its attribute `_send_idx` is the task; a signal's handler may send it meanwhile.
            order: Its attribute `noted` is the sampler's state after that.
        """
        if sender._send_idx != self.drawn_task:
            index = next(requests)
            self.drawn, self.drawn_task = index, sender._send_idx
            self.draw(self.drawn_task, index, order.noted)
        return self.drawn

    def draw_in_hand(self, requests, order):
        """Draw the next request, as `draw_from`, and take it in hand as if it were its batch."""
        cdef InHand hand
        index = next(requests)
        self.drawn_task += 1
        self.draw(self.drawn_task, index, order.noted)
        hand = self.take(self.drawn_task, 0)
        hand.batch = index
        return hand

    def take(self, int64_t task, Py_ssize_t worker, snapshot=None, BatchLog log=None):
        """
        Have the batch of a task in hand.

        Args:
            snapshot: Where its worker is after it.
            log: Notes when the batch is handed out.
        """
        cdef InHand hand = InHand()
        hand.delivered, hand.log = self, log
        hand.task, hand.worker, hand.snapshot = task, worker, snapshot
        return hand

    cdef count_batch(self, InHand hand):
        self.has_last = True
        self.worker_before = self.last_worker
        self.sampler_before, self.sampler_at_before = self.sampler, self.sampler_at
        self.sum_then_before = self.sum_then
        if self.is_numbered:
            self.count_number(self.number_of(hand.task), self.sums.pop(hand.task, 0))
        self.count += 1
        self.last_worker = hand.worker
        self.by_worker[hand.worker] += 1
        self.snapshot_before = self.snapshots[hand.worker]
        if hand.snapshot is not None:
            self.snapshots[hand.worker] = hand.snapshot

    cdef count_number(self, int64_t number, uint64_t request):
        self.last_number = number
        self.last_sum = sum_batch(request, number)
        self.low_before, self.high_before = self.low, self.high
        self.sum += self.last_sum
        if number == self.low:
            self.advance(number + 1)
        else:
            self.early.add(number)
        if number >= self.high:
            self.high = number + 1

    cdef advance(self, int64_t low):
        while self.early and low in self.early:
            self.early.remove(low)
            low += 1
        if self.states:
            for number in [number for number in self.states if number < low]:
                self.sampler, self.sum_then = self.states.pop(number)
                self.sampler_at = number + 1
        self.low = low

    def before(self):
        """
        Make what this was before the last batch was delivered, to be read alone.

        For a loop that is one batch behind, because what is between has fetched ahead. Returns this
        one if nothing was delivered since it was made.
        """
        cdef Delivered made
        if not self.has_last:
            return self
        made = Delivered(len(self.by_worker), self.is_numbered, None, 0, self.by_worker,
                         self.worker_before)
        made.by_worker[self.last_worker] -= 1
        made.count = self.count - 1
        made.snapshots = list(self.snapshots)
        made.snapshots[self.last_worker] = self.snapshot_before
        made.start(self.sampler_before, self.sampler_at_before, self.sum_then_before)
        if self.is_numbered:
            made.low, made.high = self.low_before, self.high_before
            made.sum = self.sum - self.last_sum
            made.early = self.early.union(range(self.low_before, self.low))
            made.early.discard(self.last_number)
        return made

    def missing(self):
        """List the numbers below `high` that were not delivered."""
        if self.low == self.high:
            return []
        return [number for number in range(self.low, self.high) if number not in self.early]


@cython.final
cdef class InHand:
    """
    A batch that next() has made, or an error in its place; it counts when it is handed out.

    Attributes:
        batch: What next() returns.
        error: What it raises in the batch's place; None: nothing.
        holder, key: What keeps it until then: `holder[key]` is deleted as it is handed out.
    """

    cdef public object batch, error, holder, key
    cdef Delivered delivered
    cdef BatchLog log
    cdef int64_t task
    cdef Py_ssize_t worker
    cdef object snapshot

    def __init__(self, batch=None, holder=None, key=None):
        """Have a batch in hand that does not count."""
        self.batch, self.holder, self.key = batch, holder, key

    def hand_out(self):
        """Count it, and return the batch or raise the error: from here on a checkpoint holds it."""
        if self.log is not None:
            self.log.returned()
        if self.holder is not None:
            del self.holder[self.key]
            self.holder = None
        if self.delivered is not None:
            self.delivered.count_batch(self)
            self.delivered = None
        # What is in hand no longer keeps anything alive, nor an error the frames that led to it.
        batch, error = self.batch, self.error
        self.batch = self.error = self.snapshot = None
        if error is not None:
            raise error
        return batch

    def leave_out(self):
        """Count it, although next() goes on to the batch after it."""
        self.error = None
        if self.delivered is not None:
            self.delivered.count_batch(self)
            self.delivered = None


@cython.auto_pickle(False)   # torch's iterators say themselves that they cannot be pickled
cdef class HandsOut:
    """
    The `__next__` of an iterator whose batches count.

    A subclass has

        _make()        makes an `InHand`, or raises what is the error of no batch;
        _generation    the process in which it may; None: in any;
        _is_parents()  says so elsewhere;
        _turn          a lock, for threads to take turns; None: there is only one;
        _num_yielded   how many batches were returned, as torch counts.
    """

    def __next__(self):
        cdef InHand hand
        if self._generation is not None and self._generation != generation_now():
            raise self._is_parents()
        turn, yielded = self._turn, self._num_yielded
        if turn is not None:
            turn.acquire()
        try:
            while True:
                hand = self._make()
                PyErr_CheckSignals()   # what has come until now is no loss
                if hand.holder is None or hand.key in hand.holder:
                    break   # otherwise a signal's handler has called next(), and got it
        except BaseException:
            self._num_yielded = yielded
            raise
        finally:
            if turn is not None:
                turn.release()
        return hand.hand_out()


def replay(requests, int64_t first, int64_t high, set missing, list kept):
    """
    Draw again what was drawn before, a part of it at a time: between two, a signal is noticed.

    Args:
        requests: An iterator.
        first: The number of the next request; high: of the first that was not drawn before.
        missing: Numbers that were not delivered, whose requests go to `kept`.

    Returns:
        The number of the next request, and the part of the checksum.

    Raises:
        StopIteration: There are no more requests.
    """
    cdef int64_t number = first, end = min(high, first + CHUNK)
    cdef uint64_t total = 0
    while number < end:
        index = next(requests)
        if missing and number in missing:
            kept.append(copy.copy(index))   # some samplers use one list again
        else:
            total += sum_batch(sum_request(index), number)
        number += 1
    return number, total

"""
Mistakes that are planted one at a time, to see how soon the simulation finds each.

Those of the models (tests/protocol/model/cases.py) have their names; those of history were made
once in this repository.
"""

from __future__ import annotations

from dataclasses import dataclass

MODEL, HISTORY, OTHER = "models", "history", "other"


@dataclass(frozen=True)
class Edit:
    """A piece of a source, which stands there once, and what is put in its place."""

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Mistake:
    """
    One mistake.

    Args:
        says: The mistake in words.
        edits: How it is planted.
        unseen: Why the simulation cannot find it; empty if it does.
    """

    name: str
    origin: str
    says: str
    edits: tuple[Edit, ...]
    unseen: str = ""


_DOORBELL = "csrc/doorbell.c"
_LEDGER = "csrc/ledger.c"
_TRANSPORT = "shmloader/transport/transport.py"
_HEALING = "shmloader/transport/healing.py"
_REQUESTS = "shmloader/transport/requests.py"
_SEATS = "shmloader/transport/seats.py"
_WORKERS = "shmloader/transport/workers.py"
_MEMBER = "shmloader/publishing/member.py"
_INBOX = "shmloader/publishing/inbox.py"


def _in(path: str, old: str, new: str) -> tuple[Edit, ...]:
    return (Edit(path, old, new),)


PARKING = (
    Mistake(
        "NO_WAKE",
        MODEL,
        "a ringer wakes no process: the lost wake-up",
        _in(_DOORBELL, "platform_unpark(&bell->rings);", "(void)0;"),
    ),
    Mistake(
        "PARKED_READ_FIRST",
        MODEL,
        "a ringer loads parked, then adds",
        (
            Edit(
                _DOORBELL,
                "void doorbell_ring(struct doorbell *bell) {",
                "void doorbell_ring(struct doorbell *bell) {\n"
                '  uint32_t parked = atomic_load(&bell->parked);\n  STEP("ring: planted");',
            ),
            Edit(
                _DOORBELL,
                "if (atomic_load_explicit(&bell->parked, memory_order_seq_cst))",
                "if (parked)",
            ),
        ),
        unseen="without stores that are seen late it does no harm, because what is rung for was "
        "published before, and the owner's look finds it: the litmus tests find it",
    ),
    Mistake(
        "RING_FIRST",
        MODEL,
        "a worker rings, then publishes its answer",
        (
            Edit(
                "csrc/desk.c",
                "  if (!ring_push(&desk->ready_ring, cell_make(verb, slot))) return false;",
                "  doorbell_ring(&segment_control(desk->base)->doorbell);",
            ),
            Edit(
                "csrc/desk.c",
                "  doorbell_ring(&segment_control(desk->base)->doorbell);\n  return true;\n}\n\n"
                "bool desk_is_heard",
                "  return ring_push(&desk->ready_ring, cell_make(verb, slot));\n}\n\n"
                "bool desk_is_heard",
            ),
        ),
    ),
    Mistake(
        "NO_COMPARE",
        MODEL,
        "parking does not compare rings",
        _in(
            _DOORBELL,
            "return platform_park(&bell->rings, armed, timeout_ns);",
            "(void)armed;\n  return platform_park(&bell->rings, bell->rings, timeout_ns);",
        ),
    ),
    Mistake(
        "NO_LOOK",
        MODEL,
        "the trainer arms and parks at once",
        _in(
            _LEDGER,
            "    if (ring_has_value(&ledger->ready_rings[worker])) return true;\n",
            "    if (ledger == NULL) return true;\n",
        ),
    ),
    Mistake(
        "NO_FENCE",
        MODEL,
        "arming loads rings too early",
        _in(
            _DOORBELL,
            "  atomic_store_explicit(&bell->parked, 1, memory_order_seq_cst);",
            "  atomic_store_explicit(&bell->parked, 1, memory_order_relaxed);",
        ),
        unseen="one process at a time is sequentially consistent: the litmus tests find it",
    ),
)

RINGS = (
    Mistake(
        "KEEP_READY",
        MODEL,
        "the ready ring of the dead stays as it was",
        _in(
            _LEDGER,
            "  ring_init(ready, 0);\n",
            "  if (ledger->last_ticket == 0) ring_init(ready, 0);\n",
        ),
    ),
    Mistake(
        "KEEP_TASKS",
        MODEL,
        "the task ring of the dead stays as it was",
        (
            Edit(
                _LEDGER,
                "  ring_init(tasks, 0);\n",
                "  if (ledger->last_ticket == 0) ring_init(tasks, 0);\n",
            ),
            Edit(
                _LEDGER,
                "  ledger->task_rings[worker] =",
                "  if (ledger->last_ticket == 0) ledger->task_rings[worker] =",
            ),
        ),
    ),
    Mistake(
        "NO_TICKET_CHECK",
        MODEL,
        "any ticket's answer will do",
        _in(
            _LEDGER,
            '  if (answer->ticket != entry->ticket) return "the answer is for another ticket";\n',
            "",
        ),
    ),
    Mistake(
        "READY_BY_CELL_ALONE",
        MODEL,
        "the ledger is not asked",
        _in(
            _LEDGER,
            "  if (entry->state != SLOT_PLACED || entry->worker != worker) "
            'return "not this worker\'s slot";\n',
            "",
        ),
    ),
)

LEASES = (
    Mistake(
        "COLLECT_IN_TWO_STEPS",
        MODEL,
        "the stack of released slots is read, then emptied",
        _in(
            _LEDGER,
            "  head = atomic_exchange_explicit(&ledger->released, 0, memory_order_acquire);\n",
            "  head = atomic_load(&ledger->released);\n  atomic_store(&ledger->released, 0);\n",
        ),
        unseen="no thread of the trainer drops a batch: threads_lease and the model find it",
    ),
    Mistake(
        "FREE_UNDER_A_COPY",
        OTHER,
        "a slot is free when it is dropped, though a device may read it",
        _in(
            _LEDGER,
            "if (ledger->entries[slot].is_for_devices) make_fenced",
            "if (false) make_fenced",
        ),
    ),
    Mistake(
        "COVERED_EARLY",
        OTHER,
        "an event covers slots that were dropped behind it",
        _in(
            _LEDGER,
            "entry->fence = ledger->fences.next;",
            "entry->fence = ledger->fences.next - (ledger->fences.count > 0);",
        ),
    ),
    Mistake(
        "FREE_UNDER_FORKS",
        MODEL,
        "a slot is free while a child may read it",
        _in(_LEDGER, "  if (entry->children > 0) {", "  if (false) {"),
    ),
    Mistake(
        "FORK_UNMARKED",
        MODEL,
        "the hook of a fork marks nothing",
        _in(
            "csrc/children.c",
            "  children_forking++;\n  children_mark();\n",
            "  children_forking++;\n",
        ),
    ),
    Mistake(
        "UNFORK_EARLY",
        MODEL,
        "the note of a child goes before the child",
        _in(
            "csrc/children.c",
            "    if (!platform_witness_is_alone(witness->fd)) {",
            "    if (false) {",
        ),
    ),
    Mistake(
        "CHILD_RECEIVES",
        MODEL,
        "a child takes a cell of the ready ring",
        _in(
            _LEDGER,
            "bool ledger_receive(struct ledger *ledger, struct news *news) {\n"
            "  if (ledger_is_copy(ledger)) return false;\n",
            "bool ledger_receive(struct ledger *ledger, struct news *news) {\n",
        ),
    ),
    Mistake(
        "CHILD_PLACES",
        MODEL,
        "a child places by its copy of the ledger",
        _in(
            _LEDGER,
            "  if (ledger_is_copy(ledger)) return -EPERM;\n  if (worker >=",
            "  if (worker >=",
        ),
    ),
    Mistake(
        "CHILD_EMPTIES",
        MODEL,
        "a child restarts the segment",
        (
            Edit(
                _LEDGER,
                "void ledger_restart(struct ledger *ledger) {\n"
                "  if (ledger_is_copy(ledger)) return;\n",
                "void ledger_restart(struct ledger *ledger) {\n",
            ),
            Edit(
                _LEDGER,
                "void ledger_reclaim(struct ledger *ledger, uint32_t worker) {\n"
                "  if (ledger_is_copy(ledger)) return;\n",
                "void ledger_reclaim(struct ledger *ledger, uint32_t worker) {\n",
            ),
        ),
    ),
    Mistake(
        "CHILD_PUNCHES",
        MODEL,
        "a child punches what is FREE in its copy",
        (
            Edit(
                _LEDGER,
                "void ledger_rest(struct ledger *ledger, bool is_final) {\n"
                "  if (ledger_is_copy(ledger)) return;\n",
                "void ledger_rest(struct ledger *ledger, bool is_final) {\n",
            ),
            Edit(
                "csrc/budget.c",
                "void budget_retake(struct ledger *ledger, uint32_t slot, uint64_t keep_bytes) {\n"
                "  if (ledger_is_copy(ledger)) return;\n",
                "void budget_retake(struct ledger *ledger, uint32_t slot, uint64_t keep_bytes) {\n",
            ),
        ),
    ),
    Mistake(
        "DROP_WITHOUT_LEASE",
        OTHER,
        "a slot is free as soon as its batch is delivered",
        _in(
            _LEDGER,
            '  STEP("lease: begun");\n',
            '  STEP("lease: begun");\n  make_free(ledger, slot);\n',
        ),
    ),
)

SLOTS = (
    Mistake(
        "NO_DRAIN",
        MODEL,
        "what the dead had answered is lost",
        _in(
            _TRANSPORT,
            "        self.drain()\n        self.ledger.recall(worker)\n",
            "        self.ledger.recall(worker)\n",
        ),
        unseen="healing has looked for a worker's last words before, which drains; and what is "
        "lost is asked again, of a replacement that goes on before it",
    ),
    Mistake(
        "START_BEFORE_RECLAIM",
        MODEL,
        "the next worker starts before the slots of the dead are reclaimed",
        _in(
            _HEALING,
            "        progress = self._transport.recall(worker_id)\n"
            "        index = self._transport.in_hand(worker_id)\n"
            "        self._start_another(worker_id, progress)\n",
            "        progress = self._transport.ledger.progress.pasts[worker_id]\n"
            "        self._start_another(worker_id, progress)\n"
            "        self._workers[worker_id].pid\n"
            "        progress = self._transport.recall(worker_id)\n"
            "        index = self._transport.in_hand(worker_id)\n",
        ),
    ),
    Mistake(
        "PLACE_AGAIN_LAST",
        MODEL,
        "what the dead owed is placed again after all others",
        (
            Edit(
                _REQUESTS,
                "        if self._progress.heals and not self._resend():\n            return\n",
                "",
            ),
            Edit(
                _REQUESTS,
                "            self.waiting.popleft()\n            raise\n",
                "            self.waiting.popleft()\n            raise\n"
                "        if self._progress.heals and not self.waiting:\n"
                "            self._resend()\n",
            ),
        ),
    ),
    Mistake(
        "WANT_SURVIVES",
        MODEL,
        "a freed slot still wants",
        _in(
            _LEDGER,
            "  budget_set_want(ledger, entry, 0);\n  budget_set_short(ledger, entry, 0);\n"
            "  if (entry->children > 0) {",
            "  if (entry->children > 0) {",
        ),
    ),
    Mistake(
        "NO_OLDEST",
        MODEL,
        "the oldest want waits for room, too",
        _in(
            _TRANSPORT,
            "        is_oldest = ticket == self.ledger.oldest()\n        if is_oldest:\n"
            "            self.received.spill_until",
            "        is_oldest = False\n        if is_oldest:\n"
            "            self.received.spill_until",
        ),
    ),
    Mistake(
        "GRANT_UNTOLD",
        OTHER,
        "a grant rings no bell",
        _in(
            _LEDGER,
            '  STEP("grant: grant_bytes");\n'
            "  doorbell_ring(&segment_worker(ledger->base, &ledger->geometry, "
            "entry->worker)->doorbell);\n",
            '  STEP("grant: grant_bytes");\n',
        ),
    ),
    Mistake(
        "NO_SPILL",
        MODEL,
        "every batch is leased, whatever is left",
        _in(
            "shmloader/transport/budget.py",
            "        return None if self._figures.has_plenty(slot, self.reserve) else "
            "self._shortage(slot)\n",
            "        return None\n",
        ),
    ),
)

PAST = (
    Mistake(
        "OLDER_NOTE",
        HISTORY,
        "a replacement gets an older note",
        _in(
            _TRANSPORT,
            "        return replace(self.ledger.progress.pasts[worker])\n",
            "        past = self.ledger.progress.pasts[worker]\n"
            "        return replace(past, latest=past.before) if past.before else replace(past)\n",
        ),
    ),
    Mistake(
        "WORD_LOST",
        HISTORY,
        "a word that the dead had not answered is not told again",
        _in(_REQUESTS, "        self._ledger.tell_resumes_again()\n", ""),
    ),
    Mistake(
        "WORD_AND_SEND",
        HISTORY,
        "a worker is told of an epoch's beginning, and its replacement in its note as well: twice",
        _in(
            _TRANSPORT,
            "        if self.ledger.progress.answer_resume(worker):\n"
            "            self._again.append(Answer(_TOLD, worker))\n",
            "        if self.ledger.progress.is_resuming(worker):\n"
            "            self._again.append(Answer(_TOLD, worker))\n",
        ),
    ),
    Mistake(
        "OVERTAKEN",
        HISTORY,
        "what was received early is taken after what came later: a word overtakes a batch",
        _in(
            _TRANSPORT,
            "        if self._again:\n            return self._again.popleft()\n",
            "        if self._again:\n            return self._again.pop()\n",
        ),
    ),
    Mistake(
        "ORDER_TWICE",
        HISTORY,
        "the nursery obeys an order that is sent twice, twice",
        (
            Edit(
                "shmloader/processes/newborn.py",
                "        if (taker is not None and taker.is_alive()) or self.is_decided():\n",
                "        if self.is_decided():\n",
            ),
            Edit(
                "shmloader/processes/newborn.py",
                "        if taker is not None:\n            self._taker = None\n",
                "        if taker is not None and not taker.is_alive():\n"
                "            self._taker = None\n",
            ),
            Edit(
                "shmloader/processes/birth.py",
                "        return is_as_old and (first.event, first.pid) ==",
                "        return is_as_old or (first.event, first.pid) ==",
            ),
        ),
    ),
    Mistake(
        "CLOSED_BY_NUMBER",
        HISTORY,
        "a finalizer closes a file's number, which is another file's by then",
        (
            Edit(
                "shmloader/processes/birth.py",
                "        self._descriptor = descriptor\n",
                "        self._descriptor = descriptor\n"
                "        self._number = descriptor.fileno()\n",
            ),
            Edit(
                "shmloader/processes/birth.py",
                "    def content(self) -> bytes:\n",
                "    def __del__(self):\n        try:\n            os.close(self._number)\n"
                "        except OSError:\n            pass\n\n"
                "    def content(self) -> bytes:\n",
            ),
        ),
    ),
    Mistake(
        "STILL_WANTED",
        HISTORY,
        "what was taken out of the rings early is delivered even if it was abandoned",
        _in(
            _TRANSPORT,
            "        self._again = deque(answer for answer in self._again if answer.key in keep)\n",
            "",
        ),
    ),
    Mistake(
        "COUNTED_EARLY",
        HISTORY,
        "next() counts an answer some bytecodes before it has returned it",
        _in(
            "shmloader/core/__init__.py",
            "from shmloader.core._core import HandsOut as HandsOut",
            "from shmloader.core.plain import HandsOut as HandsOut",
        ),
        unseen="three runs of 17,687 found it, each interrupted at one bytecode of some hundred: "
        "`test_a_batch_counts_if_and_only_if_it_was_returned` interrupts before every one",
    ),
    Mistake(
        "DROPPED_EARLY",
        OTHER,
        "an answer is forgotten as it is delivered, before its client has it",
        _in(
            "shmloader/transport/received.py",
            "        return answer.batch\n",
            "        return self.by_key.pop(answer.key).batch\n",
        ),
    ),
    Mistake(
        "NOT_RECOVERED",
        HISTORY,
        "an answer that an interrupt lost after the ledger received it stays lost",
        _in(
            _TRANSPORT,
            "        lost = [answer for answer in self.ledger.ready_slots() if answer.slot",
            "        lost = [answer for answer in () if answer.slot",
        ),
    ),
    Mistake(
        "UNSEEN_PAGES",
        OTHER,
        "the pages that a dead worker had added stay, uncounted",
        _in(
            "csrc/budget.c",
            "  if (unseen > 0) (void)platform_punch(ledger->fd, offset, unseen);\n",
            "",
        ),
    ),
)

PUBLISHING = (
    Mistake(
        "TOLD_NOT_HELD",
        OTHER,
        "a subscriber is told of a batch whose lease nobody keeps",
        _in(
            _MEMBER,
            "self.held[place] = Told(lent, self.epoch, end)",
            "self.held[place] = Told(None, self.epoch, end)",
        ),
    ),
    Mistake(
        "SKIP_KEEPS",
        OTHER,
        "what a subscriber skips stays lent to it",
        _in(
            _MEMBER,
            "            elif reply == Reply.SKIP:\n",
            "            elif reply == Reply.SKIP and number < 0:\n",
        ),
    ),
    Mistake(
        "DEAD_HOLD",
        OTHER,
        "what a dead subscriber was told of stays lent to it",
        _in(
            _MEMBER,
            "        self.feed.give_up()\n        self.held.clear()\n",
            "        self.feed.give_up()\n        _HELD.append(self.held)\n",
        )
        + _in(_MEMBER, "class Told(", "_HELD = []\n\n\nclass Told("),
    ),
    Mistake(
        "TORN_COPY",
        OTHER,
        "one that was given up hands out what it has copied since",
        _in(_INBOX, "        try:\n            check()\n", "        try:\n            pass\n"),
    ),
)

SEATS = (
    Mistake(
        "LET_GO_ASKED",
        OTHER,
        "one that is let go is asked on: what it has when it leaves is lost",
        _in(_REQUESTS, "        self._ledger.open_seat(worker, False)\n", ""),
    ),
    Mistake(
        "LET_GO_OWING",
        OTHER,
        "one that is let go counts as gone when it is told, with answers to give",
        _in(
            _SEATS, "return is_there and not owes and not ledger", "return is_there and not ledger"
        ),
    ),
    Mistake(
        "ADDED_COSTS",
        OTHER,
        "a worker that is added uses up a restart",
        _in(
            _WORKERS,
            "            if not one():\n                break\n",
            "            if not one():\n                break\n"
            "            if count > 0 and self.healer is not None:\n"
            "                self.healer._used += 1\n",
        ),
    ),
    Mistake(
        "SEAT_TAKEN_TWICE",
        OTHER,
        "a seat counts as vacant as soon as its worker is told to leave",
        _in(
            _SEATS,
            "            if not self._workers[worker].is_alive():\n                self._vacate",
            "            if worker in self._told:\n                self._vacate",
        ),
    ),
    Mistake(
        "SEATED_IS_NEWS",
        HISTORY,
        "who sits down ends each wait until there is a request for it: the trainer spins",
        _in(_TRANSPORT, "        self.requests.note_seats()\n", ""),
    ),
)

MISTAKES = (*PARKING, *RINGS, *LEASES, *SLOTS, *PAST, *SEATS, *PUBLISHING)

_BUILD = "it stands in Cython or in a header, and would take a build of its own"
_ORDER = "one process at a time is sequentially consistent: the litmus tests have it"
_THREAD = "no thread of the trainer drops a batch here: protocol/c has it"
_KEEPS = "no worker keeps an alias of a slot here: memory/ and the model have it"
_CLIENT = "which segment is used again is its client's to decide: deaths/ and memory/ have it"

# The models' mistakes that are not planted, and why.
UNPLANTED = {
    **dict.fromkeys(("ARM_LATE", "LOOK_AT_ONE", "NO_SLICE", "ARM_ONCE"), _BUILD),
    **dict.fromkeys(("RELAXED_WRITE_POS", "CELL_READ_EARLY", "READ_POS_FIRST"), _ORDER),
    **dict.fromkeys(("OFF_BY_ONE", "COMPARE_POSITIONS", "NO_LOOK_WHEN_FULL"), _BUILD),
    **dict.fromkeys(("NO_LOOK_WHEN_EMPTY", "READER_KEEPS_END"), _BUILD),
    **dict.fromkeys(("FREE_ON_FIRST_ALIAS", "COUNT_IN_TWO_STEPS", "NEXT_AFTER_PUSH"), _THREAD),
    **dict.fromkeys(("PUSH_WITHOUT_COMPARE", "UNREF_BEFORE_PUSH"), _THREAD),
    "LEASE_WITHOUT_REFERENCE": _THREAD,
    "REOPEN_UNDRAINED": "it is NO_DRAIN",
    "FREE_UNDER_CHILDREN": "it is FREE_UNDER_FORKS",
    "PIPE_CLOSED": "children are known by a mapping now, not by a pipe",
    "RECLAIM_BEFORE_REAP": "no line asks for less than a reaping, so it has no line to change",
    "RESTART_EARLY": _CLIENT,
    "PLACE_AGAIN_ANYWHERE": "the place is the model's: the code has a worker's seat for it",
    "GRANT_KEEPS_WANT": _BUILD,
    **dict.fromkeys(("LOSE_WHEN_FULL", "STUCK_WHEN_FULL"), "no user code gives up a want here"),
    **dict.fromkeys(("LEASE_KEPT", "REUSE_KEPT", "NO_COPY_IN"), _KEEPS),
}

/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The moves of a slot (csrc/ledger.c): a trainer, two workers, two slots and a spare, and TICKETS
 * tickets, which the trainer delivers in order. A worker may die DEATHS times, between any two
 * steps, and be followed by another. WANTS times a batch needs a larger grant, KEEPS batches stay
 * aliased in their worker, FORGERIES cells are nonsense. With ABANDON at 1 the trainer may stop at
 * any time.
 *
 * A step is one write that another process may see. The rings are channels (ring.pml says why) of
 * the smallest length, a wait ends when there is news (parking.pml), and the last alias of a slot
 * dies in one step (leases.pml). Sizes in bytes are left out: each time there may be room or
 * not.
 *
 * Checked: a slot has one owner, that is, a process that writes it or reads a batch from it finds
 * what it left there; each ticket is delivered once, with its own batch; what a worker said before
 * it died counts; no slot is lost, nothing blocks, and every run ends.
 */

#ifndef TICKETS
#define TICKETS 3
#endif
#ifndef DEATHS
#define DEATHS 0
#endif
#ifndef WANTS
#define WANTS 0
#endif
#ifndef KEEPS
#define KEEPS 0
#endif
#ifndef FORGERIES
#define FORGERIES 0
#endif
#ifndef ABANDON
#define ABANDON 0
#endif

#define SLOTS 2
#define RANGES 3
#define RESERVE 1 /* slots that are never leased */
#define NO_SLOT 9
#define ANYWHERE 2

/* What stands in a slot: a request, half a batch, or a whole one, told by its ticket's number. */
#define REQUEST 50
#define TORN 100

mtype = { CELL_READY, CELL_WANT };
mtype = { ALIVE, KILLED, GONE, LEFT }; /* killed: may still write; gone: was reaped */

/* Shared memory: orders, answers, payloads, rings, and the word that tells workers to leave. */
bool granted[RANGES];
bool refused[RANGES];
bool copy_in[RANGES];
byte answer_ticket[RANGES];
bool answer_kept[RANGES];
byte content[RANGES];
chan tasks[2] = [RANGES] of { byte };
chan ready[2] = [SLOTS] of { mtype, byte };
bool stopping;

/* The workers. */
mtype life[2] = ALIVE;
bool reopened[2];           /* the seat is ready for another one */
byte in_hand[2] = NO_SLOT;  /* the slot that it may write to */
bool keeps[2 * RANGES];     /* worker w keeps an alias of slot s: keeps[RANGES * w + s] */

/* The user. */
bool alias[RANGES];    /* of a leased slot, and alive */
bool hoards[RANGES];   /* it is kept for ever */
bool released[RANGES]; /* it has died, so the slot is on the stack */

byte deaths;
byte wants;
byte kept;
byte forged;

/* What the answer's cell does in the same step: from then on the slot is the trainer's. */
#define TOLD(verb)                                    \
  if                                                  \
  :: verb == CELL_READY ->                            \
     in_hand[me] = NO_SLOT;                           \
     keeps[RANGES * me + slot] = answer_kept[slot];   \
     slot = 0;                                        \
     mine = 0                                         \
  :: else -> skip                                     \
  fi

#define NOBODY_WRITES(s) (in_hand[0] != s && in_hand[1] != s)
#define NOBODY_AT(s) (NOBODY_WRITES(s) && !keeps[s] && !keeps[RANGES + s] && !alias[s])

/* Only nonsense may look like a fault; then the trainer gives up, as it does on WorkerBroken. */
#define BROKEN_IF(fault) if :: fault -> assert(FORGERIES > 0); goto stop :: else -> skip fi

#include "ledger.pml"

inline write(what) { /* a store to the slot in hand, which has no other owner now */
  atomic {
    assert(state[slot] == PLACED && holder[slot] == me && ticket[slot] == mine);
    content[slot] = what
  }
}

inline tell(verb) { /* desk_tell; wants given up may fill the ring, then it is tried again */
  if
  :: atomic { nfull(ready[me]) -> ready[me]!verb,slot; TOLD(verb) }
#ifdef LOSE_WHEN_FULL
  :: full(ready[me]) -> skip
#endif
#ifndef STUCK_WHEN_FULL
  :: stopping -> goto leave
#endif
  fi
}

inline ask() { /* Desk.ask: says what it wants and waits, or user code gives up waiting */
  answer_ticket[slot] = mine;
  tell(CELL_WANT);
  if
  :: true -> /* waits; refused, it writes an error in the batch's place */
     if
     :: granted[slot] || refused[slot] -> skip
     :: stopping -> goto leave
     fi
  :: true -> skip
  fi
}

inline commit() { /* Desk.commit; with the cell the slot is the trainer's */
  atomic {
    assert(state[slot] == PLACED && holder[slot] == me);
    answer_ticket[slot] = mine;
    if
    :: answer_kept[slot] = false
    :: kept < KEEPS && !copy_in[slot] -> kept++; answer_kept[slot] = true
    fi
  }
  tell(CELL_READY)
}

/* A worker, and its replacements at the same seat. */
proctype worker(byte me) {
  byte slot;
  byte mine; /* the ticket in hand */
sit_down:
  do
  :: atomic { stopping -> goto leave }
  :: atomic { /* desk_take, Desk.begin */
       tasks[me]?slot ->
       if
       :: stopping -> goto leave
       :: else -> skip
       fi;
       in_hand[me] = slot;
       mine = ticket[slot];
       assert(state[slot] == PLACED && holder[slot] == me);
       assert(content[slot] == REQUEST + mine)
     }
     write(TORN);
     do
     :: atomic { wants < WANTS && !granted[slot] && !refused[slot] -> wants++ } ask()
     :: true -> break
     od;
     write(mine);
     commit()
  od unless { life[me] == GONE };
end_gone:
  atomic {
    reopened[me] -> reopened[me] = false;
    life[me] = ALIVE;
    slot = 0;
    mine = 0;
    goto sit_down
  }
leave:
  atomic { in_hand[me] = NO_SLOT; life[me] = LEFT }
}

inline end_of(w) {
  life[w] = GONE;
  in_hand[w] = NO_SLOT;
  keeps[RANGES * w] = false;
  keeps[RANGES * w + 1] = false;
  keeps[RANGES * w + 2] = false
}

active proctype killer() {
end:
  do
  :: atomic { deaths < DEATHS && life[0] == ALIVE -> deaths++; life[0] = KILLED }
  :: atomic { deaths < DEATHS && life[1] == ALIVE -> deaths++; life[1] = KILLED }
  :: atomic { life[0] == KILLED -> end_of(0) }
  :: atomic { life[1] == KILLED -> end_of(1) }
  od
}

#define MAY_DROP(s) (alias[s] && !hoards[s])

/* Any thread of the trainer's process: it drops the aliases that the user does not keep. */
active proctype user() {
  byte slot;
end:
  do
  :: atomic {
       ANY(MAY_DROP) -> PICK(slot, MAY_DROP);
       assert(state[slot] == LEASED && content[slot] == ticket[slot]);
       alias[slot] = false;
       released[slot] = true;
       slot = 0
     }
  od
}

#ifdef RECLAIM_BEFORE_REAP
#define TO_HEAL(w) ((life[w] == GONE || life[w] == KILLED) && !reopened[w])
#else
#define TO_HEAL(w) (life[w] == GONE && !reopened[w])
#endif

inline heal(w) { /* what it said counts; what it held is placed again; another one is started */
#ifdef START_BEFORE_RECLAIM
  reopened[w] = true;
  life[w] == ALIVE;
#endif
#ifndef KEEP_READY
#ifndef NO_DRAIN
  do
  :: nempty(ready[w]) -> receive(w, verb, slot)
  :: empty(ready[w]) -> break
  od;
#endif
  assert(empty(ready[w]));
#endif
  reclaim(w, slot);
#ifndef START_BEFORE_RECLAIM
  reopened[w] = true
#endif
}

#ifdef RESTART_EARLY
#define HAS_LEFT(w) true
#else
#define HAS_LEFT(w) (life[w] == LEFT || (life[w] == GONE && !reopened[w]))
#endif
#define ANY_WAITING (stage[1] == WAITING || stage[2] == WAITING || stage[TICKETS] == WAITING)
#define HAS_NEWS(w) (len(ready[w]) > 0 || forged < FORGERIES)
#define ALL_COUNT (COUNT(IS_FREE) + COUNT(IS_LEASED) + COUNT(IS_RETIRED) + (state[SLOTS] == SPARE))

active proctype trainer() {
  byte slot;
  byte number;
  mtype verb;
  atomic { state[SLOTS] = SPARE; run worker(0); run worker(1) }
  do
  :: atomic { ANY(IS_RELEASED) -> collect(slot) }
  :: atomic {
       ANY(IS_FREE) && ANY_WAITING -> find_waiting(number); PICK(slot, IS_FREE);
       if
       :: MAY_GO(0, number) -> place(slot, 0, number)
       :: MAY_GO(1, number) -> place(slot, 1, number)
       fi;
       slot = 0;
       number = 0
     }
  :: atomic { HAS_NEWS(0) -> receive(0, verb, slot); slot = 0 }
  :: atomic { HAS_NEWS(1) -> receive(1, verb, slot); slot = 0 }
#ifndef NO_OLDEST
  :: atomic { ANY(IS_OLDEST_WANT) -> PICK(slot, IS_OLDEST_WANT); settle(slot); slot = 0 }
#endif
  :: atomic { /* Transport._spill_for: a later answer makes room for the oldest ticket */
       ANY(IS_OLDEST_WANT) && ANY(IS_READY) -> PICK(slot, IS_READY);
       stage[ticket[slot]] = SPILLED;
       make_free(slot);
       slot = 0
     }
  :: atomic {
       ANY(IS_NEXT) -> PICK(slot, IS_NEXT); deliver(slot);
       stage[next_ticket] = DELIVERED;
       next_ticket++;
       slot = 0
     }
  :: atomic { stage[next_ticket] == SPILLED -> stage[next_ticket] = DELIVERED; next_ticket++ }
  :: atomic { TO_HEAL(0) -> heal(0); slot = 0 }
  :: atomic { TO_HEAL(1) -> heal(1); slot = 0 }
  :: next_ticket > TICKETS -> break
  :: ABANDON -> break
  od;

stop: /* ledger_stop, then ledger_restart when all are gone */
  stopping = true;
  HAS_LEFT(0) && HAS_LEFT(1) -> atomic {
    collect(slot);
    reclaim(0, slot);
    reclaim(1, slot);
    do
    :: ANY(IS_READY) -> PICK(slot, IS_READY); make_free(slot)
    :: else -> break
    od;
    slot = 0
  }
  atomic { /* no slot is lost */
    collect(slot);
    assert(ALL_COUNT == RANGES);
    assert(COUNT(IS_FREE) + COUNT(IS_LEASED) > 0);
    assert((state[SLOTS] == SPARE) == (COUNT(IS_RETIRED) == 0))
  }
}

/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The ledger of slots.pml: what the trainer knows of each slot, and its moves (csrc/ledger.c). A
 * move is one step: apart from the rings no other process writes a word that it reads, or reads a
 * word that it writes before the cell that announces it.
 */

mtype = { FREE, PLACED, READY, LEASED, RETIRED, SPARE }; /* slot_state; FORKED is in leases.pml */
mtype = { WAITING, OUT, SPILLED, DELIVERED };            /* what has become of a ticket */

mtype state[RANGES] = FREE; /* the last range starts as the SPARE */
byte holder[RANGES];        /* entry.worker */
byte ticket[RANGES];        /* entry.ticket and order.ticket: written together, by the trainer */
bool want[RANGES];          /* entry.want_bytes: its worker waits */
bool retire[RANGES];        /* entry.retire */

/* Tickets are counted from 1, and 0 is none; one more than there are ends every search. */
mtype stage[TICKETS + 2] = WAITING;
byte next_ticket = 1; /* the one that the trainer delivers next */
byte home[TICKETS + 2] = ANYWHERE; /* the seat that it was reclaimed from */

/* True of any slot; of how many slots; a slot of which it is true. */
#define ANY(is) (is(0) || is(1) || is(2))
#define COUNT(is) (is(0) + is(1) + is(2))
#define PICK(s, is) if :: is(0) -> s = 0 :: is(1) -> s = 1 :: is(2) -> s = 2 fi

#define IS_FREE(s) (state[s] == FREE)
#define IS_READY(s) (state[s] == READY)
#define IS_OUT(s) (state[s] == PLACED || state[s] == READY)
#define IS_IDLE(s) (IS_FREE(s) || IS_OUT(s))
#define IS_LEASED(s) (state[s] == LEASED)
#define IS_RETIRED(s) (state[s] == RETIRED)
#define IS_NEXT(s) (state[s] == READY && ticket[s] == next_ticket)
#define IS_RELEASED(s) (released[s])
#define IS_WANTING(s) (want[s])
#define NOT_BEFORE(s, other) (!IS_OUT(other) || ticket[other] >= ticket[s])
#define IS_OLDEST_WANT(s) (want[s] && NOT_BEFORE(s, 0) && NOT_BEFORE(s, 1) && NOT_BEFORE(s, 2))

inline make_free(s) {
  granted[s] = false;
  refused[s] = false;
  copy_in[s] = false;
#ifndef WANT_SURVIVES
  want[s] = false;
#endif
  if
#ifndef REUSE_KEPT
  :: retire[s] ->
     state[s] = RETIRED;
     if
     :: state[SLOTS] == SPARE -> state[SLOTS] = FREE
     :: else -> skip
     fi
#endif
  :: else -> state[s] = FREE
  fi
}

inline find_waiting(t) { /* the head of Transport's queue: the lowest ticket, placed again or not */
  t = 1;
#ifdef PLACE_AGAIN_LAST
  do
  :: stage[t] == WAITING && home[t] == ANYWHERE -> break
  :: else -> t++
  od;
  if
  :: t > TICKETS -> t = 1
  :: else -> skip
  fi;
#endif
  do
  :: stage[t] == WAITING -> break
  :: else -> t++
  od
}

/*
 * A ticket that is placed again goes to the seat it came from, so each worker finds its tickets
 * in ascending order. At another seat it might stand behind a later ticket, whose worker waits for
 * a grant that only the oldest is sure to get: PLACE_AGAIN_ANYWHERE.
 */
#ifdef PLACE_AGAIN_ANYWHERE
#define MAY_GO(w, t) true
#else
#define MAY_GO(w, t) (home[t] == ANYWHERE || home[t] == w)
#endif

inline place(s, w, t) { /* ledger_place, to any worker, even to one that is not there */
  assert(NOBODY_AT(s));
  state[s] = PLACED;
  holder[s] = w;
  ticket[s] = t;
  stage[t] = OUT;
#ifndef NO_COPY_IN
  copy_in[s] = COUNT(IS_RETIRED) > 0; /* Budget.copies_in, with one spare */
#endif
  content[s] = REQUEST + t;
  assert(nfull(tasks[w])); /* invariant 3: to push a slot cannot fail */
  tasks[w]!s
}

inline settle(s) { /* ledger_grant, ledger_refuse; how the worker is woken is in parking.pml */
  assert(state[s] == PLACED);
#ifndef GRANT_KEEPS_WANT
  want[s] = false;
#endif
  if
  :: granted[s] = true
  :: refused[s] = true
  fi
}

inline accept_want(s) {
  BROKEN_IF(answer_ticket[s] != ticket[s]);
  if
  :: granted[s] -> skip /* a want that was given up, and said once more */
  :: else ->
     want[s] = true;
     if
     :: settle(s)
     :: skip /* there is no room now: it waits until its ticket is the oldest */
     fi
  fi
}

inline accept_ready(s) {
#ifndef NO_TICKET_CHECK
  BROKEN_IF(answer_ticket[s] != ticket[s]);
#endif
  want[s] = false;
  retire[s] = answer_kept[s];
  answer_kept[s] = false; /* a value not read again is reset, here and elsewhere: fewer states */
  state[s] = READY;
  assert(NOBODY_WRITES(s));
  assert(content[s] == ticket[s] && stage[ticket[s]] == OUT)
}

inline accept(w, verb, s) { /* a cell counts if the ledger says so */
#ifndef READY_BY_CELL_ALONE
  BROKEN_IF(state[s] != PLACED || holder[s] != w);
#endif
  if
  :: verb == CELL_READY -> accept_ready(s)
  :: verb == CELL_WANT -> accept_want(s)
  fi
}

/* What no honest worker can have said: a cell like this is nonsense. */
#define IS_ANSWER(s) (state[s] == PLACED && holder[s] == w && answer_ticket[s] == ticket[s])
#define IS_NONSENSE(s) (!IS_ANSWER(s))

inline receive(w, verb, s) { /* ledger_receive */
  if
  :: ready[w]?verb,s
  :: forged < FORGERIES -> forged++; verb = CELL_READY; PICK(s, IS_NONSENSE)
  fi;
  accept(w, verb, s);
  verb = 0
}

inline reclaim(w, s) { /* ledger_reclaim, open_rings */
  s = 0;
  do
  :: s < RANGES ->
     if
     :: state[s] == PLACED && holder[s] == w ->
        stage[ticket[s]] = WAITING;
        home[ticket[s]] = w;
        make_free(s)
     :: else -> skip
     fi;
     s++
  :: s == RANGES -> break
  od;
#ifndef KEEP_TASKS
  do
  :: nempty(tasks[w]) -> tasks[w]?_
  :: empty(tasks[w]) -> break
  od;
#endif
#ifndef KEEP_READY
  do
  :: nempty(ready[w]) -> ready[w]?_,_
  :: empty(ready[w]) -> break
  od;
#endif
  s = 0
}

inline collect(s) { /* ledger_collect; the stack itself is in leases.pml */
  do
  :: ANY(IS_RELEASED) -> PICK(s, IS_RELEASED); released[s] = false; make_free(s)
  :: else -> break
  od;
  s = 0
}

#ifdef LEASE_KEPT
#define MUST_SPILL(s) (ANY(IS_WANTING) || COUNT(IS_IDLE) <= RESERVE)
#else
#define MUST_SPILL(s) (ANY(IS_WANTING) || COUNT(IS_IDLE) <= RESERVE || retire[s])
#endif

inline deliver(s) { /* Transport.deliver; any batch may have to spill for the bytes of it */
  assert(content[s] == next_ticket && NOBODY_WRITES(s));
  if
#ifdef NO_SPILL
  :: true ->
#else
  :: make_free(s)
  :: !MUST_SPILL(s) ->
#endif
     assert(NOBODY_AT(s));
     state[s] = LEASED;
     alias[s] = true;
     if
     :: hoards[s] = true
     :: hoards[s] = false
     fi
  fi
}

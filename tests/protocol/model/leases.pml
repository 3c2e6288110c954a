/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The end of leases (csrc/lease.h; in ledger.c slot_lease_end, ledger_collect, ledger_unref and
 * ledger_mark_child). The trainer leases its two slots LEASES times, each time with an alias for
 * each of two threads. These drop what they hold at any time and in any order, or take one alias
 * more. Meanwhile the trainer collects, leases again, forks a child that may read what is leased
 * then, and closes, with leases alive or when all have ended.
 *
 * A step is one access to a word that two threads share, and memory is sequentially consistent:
 * that an alias's last use comes before its drop stands here as the order of steps.
 *
 * Checked: nothing is written where an alias or a child may read; every slot whose aliases are gone
 * comes back; the segment is unmapped once, by the last that needs it, and not used after that;
 * every run ends.
 */

#ifndef LEASES
#define LEASES 3
#endif
#ifndef TAKES
#define TAKES 1
#endif
#ifndef FORKS
#define FORKS 1
#endif

mtype = { FREE, LEASED, FORKED, NO_CHILD, READS, GONE };

/* The ledger. */
mtype state[2] = FREE;
byte aliases[2];     /* lease.aliases */
byte next_slot[2];   /* entry.next_released */
byte forks[2];       /* entry.children */
byte released;       /* slot + 1, or 0 */
byte references = 1;
bool mapped = true;

/* Which reader may read which slot. */
byte holds[4];       /* how many aliases of slot s thread t holds: holds[2 * t + s] */
mtype child = NO_CHILD;
bool marks[2];       /* the ledger's note of what the child may read */
bool reads[2];       /* what it does read */

byte takes;
byte forked;

#define USE assert(mapped) /* beside every access to the ledger */

inline unref() { /* ledger_unref: a subtraction; the last unmaps */
  atomic { USE; references--; was = references }
  if
  :: was == 0 -> atomic { USE; mapped = false }
  :: else -> skip
  fi
}

inline push() { /* slot_lease_end: onto Treiber's stack */
  atomic { USE; head = released }
  do
  :: true ->
#ifndef NEXT_AFTER_PUSH
     atomic { USE; next_slot[slot] = head }
#endif
     atomic { /* a compare and exchange */
       USE;
       if
#ifdef PUSH_WITHOUT_COMPARE
       :: true -> released = slot + 1; break
#else
       :: released == head -> released = slot + 1; break
       :: released != head -> head = released
#endif
       fi
     }
  od;
#ifdef NEXT_AFTER_PUSH
  atomic { USE; next_slot[slot] = head }
#endif
}

#ifdef FREE_ON_FIRST_ALIAS
#define ENDS (was > 0)
#else
#define ENDS (was == 0)
#endif

/* A thread of the trainer's process. */
proctype thread(byte me) {
  byte slot;
  byte was;
  byte head;
end:
  if
  :: atomic { holds[2 * me] > 0 -> slot = 0 }
  :: atomic { holds[2 * me + 1] > 0 -> slot = 1 }
  :: atomic { /* lease_take */
       takes < TAKES && holds[2 * me] > 0 -> USE;
       takes++;
       aliases[0]++;
       holds[2 * me]++;
       goto end
     }
  fi;

  /* lease_drop */
#ifdef COUNT_IN_TWO_STEPS
  atomic { USE; was = aliases[slot] - 1; holds[2 * me + slot]-- }
  atomic { USE; aliases[slot] = was }
#else
  atomic { USE; aliases[slot]--; was = aliases[slot]; holds[2 * me + slot]-- }
#endif
  if
  :: ENDS ->
#ifdef UNREF_BEFORE_PUSH
     unref();
     push()
#else
     push();
     unref()
#endif
  :: else -> skip
  fi;
  atomic { was = 0; head = 0; slot = 0; goto end }
}

/* The child reads for a while. */
active proctype forked_child() {
end:
  do
  :: atomic { child == READS -> child = GONE; reads[0] = false; reads[1] = false }
  od
}

inline make_free(s) {
  if
#ifndef FREE_UNDER_FORKS
  :: forks[s] > 0 -> state[s] = FORKED
#endif
  :: else -> state[s] = FREE
  fi
}

inline collect() { /* ledger_collect */
  USE;
#ifdef COLLECT_IN_TWO_STEPS
  head = released;
  released = 0;
#else
  atomic { head = released; released = 0 } /* an exchange */
#endif
  do
  :: head != 0 ->
     atomic { slot = head - 1; head = next_slot[slot]; make_free(slot) }
  :: head == 0 -> break
  od
}

inline lease(s) { /* ledger_place and so on, then ledger_lease */
  atomic {
    assert(holds[s] == 0 && holds[2 + s] == 0); /* a write here now disturbs no alias */
    assert(!reads[s]);                          /* nor a child */
    state[s] = LEASED;
    aliases[s] = 2;
#ifndef LEASE_WITHOUT_REFERENCE
    references++;
#endif
    holds[s] = 1;
    holds[2 + s] = 1;
    leases++
  }
}

inline mark_fork() { /* ledger_mark_child, called after ledger_collect */
  atomic {
    forked++;
    marks[0] = state[0] == LEASED;
    marks[1] = state[1] == LEASED;
    forks[0] = forks[0] + marks[0];
    forks[1] = forks[1] + marks[1];
    reads[0] = marks[0];
    reads[1] = marks[1];
    child = READS
  }
}

inline unmark_fork(s) { /* ledger_unmark_child */
  atomic {
    forks[s] = forks[s] - marks[s];
    marks[s] = false;
    if
    :: state[s] == FORKED && forks[s] == 0 -> state[s] = FREE
    :: else -> skip
    fi
  }
}

active proctype trainer() {
  byte leases;
  byte slot;
  byte head;
  byte was;
  atomic { run thread(0); run thread(1) }
  do
  :: leases < LEASES && state[0] == FREE -> lease(0)
  :: leases < LEASES && state[1] == FREE -> lease(1)
  :: released != 0 -> collect()
  :: forked < FORKS && (state[0] == LEASED || state[1] == LEASED) -> collect(); mark_fork()
#ifdef UNFORK_EARLY
  :: child == READS -> unmark_fork(0); unmark_fork(1)
#endif
  :: child == GONE -> atomic { unmark_fork(0); unmark_fork(1); child = NO_CHILD }
  :: leases > 0 -> goto close /* with leases alive */
  :: leases == LEASES && references == 1 && child != READS -> break
  od;

  /* All leases have ended: every slot comes back. */
  if
  :: child == GONE -> unmark_fork(0); unmark_fork(1)
  :: child != GONE -> skip
  fi;
  collect();
  assert(state[0] == FREE && state[1] == FREE && forks[0] == 0 && forks[1] == 0);
close:
  unref();
  !mapped -> assert(references == 0 && holds[0] + holds[1] + holds[2] + holds[3] == 0)
}

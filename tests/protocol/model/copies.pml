/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A trainer that forks, between any two steps (csrc/ledger.c, csrc/children.c). One worker, two
 * slots, TICKETS tickets. The child has a copy of the ledger as it stood at the fork, and does
 * whatever the trainer's functions can do with it: places, receives, collects, reclaims, trims,
 * drops. It reads what it inherited, and ends at any time. That a child of the child counts too is
 * the kernel's matter: it inherits the mapping.
 *
 * A step is one change of what several processes see; rings are channels (ring.pml says why). The
 * child acts on its copy, which may be any number of moves behind.
 *
 * Checked: the trainer delivers each ticket once, in order, with its own batch; a batch that the
 * trainer or a child may read is neither written nor punched; every slot comes back when the last
 * child is gone; nothing blocks, and every run ends.
 */

#ifndef TICKETS
#define TICKETS 3
#endif

#define REQUEST 50
#define TORN 100
#define HOLE 200

mtype = { FREE, PLACED, READY, LEASED, FORKED };

/* Shared memory. */
byte content[2];
chan tasks = [4] of { byte };
chan ready = [4] of { byte };

/* The trainer's ledger, and what its user holds. */
mtype state[2] = FREE;
byte ticket[2];
bool marked[2];  /* entry.children: the witness stands for it */
bool alias[2];

/* The children: how many live, and how many map the witness. */
byte children;
byte mapping;
bool open_here;  /* the trainer maps the witness: forks share it */
bool reads[2];   /* some child may read it */
mtype copy[2];   /* the child's ledger: the state at the fork */
byte copy_ticket[2];
byte forks;

byte next_place = 1;
byte next_ticket = 1;

#define MAY_WRITE(s) assert(!alias[s] && !reads[s])

active proctype worker() {
  byte s;
end:
  do
  :: atomic { tasks?s -> assert(content[s] > REQUEST && content[s] < TORN) }
     atomic { MAY_WRITE(s); content[s] = content[s] - REQUEST + TORN }
     atomic { MAY_WRITE(s); content[s] = content[s] - TORN }
     atomic { ready!s; s = 0 }
  od
}

/* What a copy of the trainer may do: ledger_is_copy stops whatever others would see. */
inline act_on(s) {
  if
#ifdef CHILD_PLACES
  :: copy[s] == FREE && nfull(tasks) -> /* ledger_place */
     content[s] = REQUEST + 9;
     tasks!s
#endif
#ifdef CHILD_PUNCHES
  :: copy[s] == FREE -> content[s] = HOLE /* ledger_rest */
#endif
#ifdef CHILD_RECEIVES
  :: nempty(ready) -> ready?_ /* ledger_receive */
#endif
#ifdef CHILD_EMPTIES
  :: nempty(tasks) -> tasks?_ /* ledger_restart: open_rings */
#endif
  :: copy[s] != FREE -> copy[s] = FREE /* a dropped alias, ledger_collect; ledger_free, ... */
  :: copy[s] == FREE -> skip
  fi
}

proctype child(bool maps) {
  byte acts;
  byte mine[2];
  bool held[2];
  atomic {
    held[0] = copy[0] == LEASED;
    held[1] = copy[1] == LEASED;
    mine[0] = copy_ticket[0];
    mine[1] = copy_ticket[1]
  }
  do
  :: atomic { held[0] -> assert(content[0] == mine[0]) } break
  :: atomic { held[1] -> assert(content[1] == mine[1]) } break
  :: atomic { acts < 2 -> acts++; act_on(0) }
  :: atomic { acts < 2 -> acts++; act_on(1) }
  :: break
  od;
  atomic {
    assert(!held[0] || content[0] == mine[0]);
    assert(!held[1] || content[1] == mine[1]);
    reads[0] = false;
    reads[1] = false;
    children--;
    mapping = mapping - maps
  }
}

inline mark() { /* children_before_fork: after ledger_collect */
  if
  :: state[0] == LEASED || state[1] == LEASED ->
#ifndef FORK_UNMARKED
     marked[0] = marked[0] || state[0] == LEASED;
     marked[1] = marked[1] || state[1] == LEASED;
#endif
     open_here = true
  :: else -> skip
  fi
}

inline fork_child() {
  atomic {
    forks++;
    copy[0] = state[0];
    copy[1] = state[1];
    copy_ticket[0] = ticket[0];
    copy_ticket[1] = ticket[1];
    reads[0] = state[0] == LEASED;
    reads[1] = state[1] == LEASED;
    children++;
    mapping = mapping + open_here;
    run child(open_here)
  }
}

#ifdef PIPE_CLOSED
#define IS_ALONE true /* a child that closes its descriptors counts as gone */
#else
#define IS_ALONE (mapping == 0)
#endif

inline look() { /* children_look */
  atomic {
    open_here = false;
    if
    :: IS_ALONE ->
       marked[0] = false;
       marked[1] = false;
       if :: state[0] == FORKED -> state[0] = FREE :: else -> skip fi;
       if :: state[1] == FORKED -> state[1] = FREE :: else -> skip fi
    :: else -> skip
    fi
  }
}

inline place(s) {
  atomic {
    MAY_WRITE(s);
    state[s] = PLACED;
    ticket[s] = next_place;
    content[s] = REQUEST + next_place;
    next_place++;
    tasks!s
  }
}

inline deliver(s) {
  atomic {
    assert(content[s] == next_ticket);
    next_ticket++;
    state[s] = LEASED;
    alias[s] = true
  }
}

inline release(s) { /* the last alias, ledger_collect */
  atomic {
    assert(content[s] == ticket[s]);
    alias[s] = false;
#ifdef FREE_UNDER_CHILDREN
    state[s] = FREE
#else
    if
    :: marked[s] -> state[s] = FORKED
    :: else -> state[s] = FREE
    fi
#endif
  }
}

inline receive() {
  byte got;
  atomic { ready?got -> assert(state[got] == PLACED); state[got] = READY; got = 0 }
}

#define IS_DUE(s) (state[s] == READY && ticket[s] == next_ticket)

active proctype trainer() {
  do
  :: state[0] == FREE && next_place <= TICKETS -> place(0)
  :: state[1] == FREE && next_place <= TICKETS -> place(1)
  :: nempty(ready) -> receive()
  :: IS_DUE(0) -> deliver(0)
  :: IS_DUE(1) -> deliver(1)
  :: state[0] == LEASED -> release(0)
  :: state[1] == LEASED -> release(1)
  :: state[0] == FORKED || state[1] == FORKED -> atomic { (mapping == 0 || open_here) -> look() }
  :: forks < 1 -> atomic { mark(); fork_child() }
  :: next_ticket > TICKETS && state[0] == FREE && state[1] == FREE -> break
  od;
  assert(next_ticket == TICKETS + 1)
}

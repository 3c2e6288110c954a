/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Parking on a doorbell (csrc/doorbell.c): one owner, two ringers with NEWS pieces of news each.
 *
 * Two readings. The owner is the trainer, the ringers are its workers, and news is a cell in a
 * ready ring. Or the owner is a worker, and the words it looks at are the write_pos of its task
 * ring, `stopping`, `grant_bytes` and `refused_bytes`; which process stores them makes no
 * difference here.
 *
 * Memory. Each process has a store buffer, as on x86: its stores reach memory in their order, but
 * later than its own loads. An atomic addition waits until the buffer is empty, and so does a
 * seq_cst store before the next load: that wait is the fence which NO_FENCE leaves out. The
 * ringer's half of the pair is an addition and a load. Nothing on x86 can swap these two, but a
 * weaker order in C may: PARKED_READ_FIRST does.
 *
 * Before it arms, an owner may look whether rings have changed (csrc/looks.c): it does so at any
 * pass here, or not, and finds a ring, or not.
 *
 * Parking compares and falls asleep in one step, as FUTEX_WAIT does, but is no fence by itself.
 * Linux has one there; C11 promises none, and the proof is to need none.
 *
 * Checked: all news is taken, the owner never sleeps for ever, and without deaths every run ends. A
 * park may end for no reason or by a signal, but only SPURIOUS times, so that such an end cannot
 * hide a missed wake-up. A slice of time ends a park only for the sake of a ringer that died: with
 * DEATHS at 0 no slice is ever needed.
 */

#ifndef NEWS
#define NEWS 2
#endif
#ifndef SPURIOUS
#define SPURIOUS 2
#endif
#ifndef DEATHS
#define DEATHS 0
#endif

#define RINGS 8 /* rings wrap here, instead of at 2^32; more than all rings that there are */

/* What stands in memory. */
byte rings = RINGS - 1; /* doorbell.rings: wraps at the first ring */
bit parked;             /* doorbell.parked */
byte published[2];      /* the word that carries each ringer's news */

/* Store buffers: the owner's for `parked`, each ringer's for its news. */
chan parked_stores = [2] of { bit };
chan news_stores[2] = [NEWS] of { byte };

/* What the kernel knows. */
bool asleep;
bool dead[2];
bool ended[2];
byte deaths;

byte taken[2]; /* the owner's: how much of each ringer's news it took */
byte spurious;

/* A ringer that may have left news without ringing for it. */
#define FAILED(i) (dead[i] && ended[i])
#define ALL_STORED(i) (len(news_stores[i]) == 0)
#define DONE(i) (taken[i] == NEWS || (FAILED(i) && ALL_STORED(i) && published[i] == taken[i]))
#define UNANNOUNCED(i) (FAILED(i) && published[i] != taken[i])
/* No ring will come: for news that is out, or because no ringer is left. */
#define SLICE_NEEDED (UNANNOUNCED(0) || UNANNOUNCED(1) || (DONE(0) && DONE(1)))

/* Memory takes the buffers' stores at any time, even when their process is dead. */
active proctype memory() {
  bit value;
  byte count;
end:
  do
  :: atomic { parked_stores?value -> parked = value; value = 0 }
  :: atomic { news_stores[0]?count -> published[0] = count; count = 0 }
  :: atomic { news_stores[1]?count -> published[1] = count; count = 0 }
  od
}

inline publish() { /* ring_push: the store of write_pos */
  atomic { sent++; news_stores[me]!sent }
}

inline add_ring() { /* doorbell_ring: the addition to rings, which empties the buffer first */
  atomic { empty(news_stores[me]) -> rings = (rings + 1) % RINGS }
}

inline unpark() { /* platform_unpark: wakes the owner if it is asleep, otherwise does nothing */
  asleep = false
}

/* A process with news, which may die between any two steps. */
proctype ringer(byte me) {
  byte sent;
  bit saw;
  do
  :: sent < NEWS ->
#ifdef RING_FIRST
    add_ring();
    publish();
#else
    publish();
#ifdef PARKED_READ_FIRST
    saw = parked;
    add_ring();
#else
    add_ring();
    saw = parked; /* doorbell_ring: the load of parked */
#endif
#endif
    if
#ifndef NO_WAKE
    :: saw -> unpark()
#endif
    :: else -> skip
    fi;
    saw = 0
  :: else -> break
  od unless { dead[me] };
  ended[me] = true
}

/* Kills a ringer: the next thing it does is to be gone. */
active proctype killer() {
end:
  do
  :: atomic { deaths < DEATHS && !dead[0] && !ended[0] -> deaths++; dead[0] = true }
  :: atomic { deaths < DEATHS && !dead[1] && !ended[1] -> deaths++; dead[1] = true }
  od
}

active proctype owner() {
  byte armed;
  byte seen;
  byte i;
#ifdef ARM_ONCE
  bool is_armed;
#endif
  atomic { /* an owner that died may have left parked at 1 */
    if
    :: parked = 1
    :: parked = 0
    fi;
    run ringer(0);
    run ringer(1)
  }

receive: /* ledger_receive; desk_take: look at every ring, take what is there */
  seen = rings; /* doorbell_count */
  i = 0;
  do
  :: i < 2 && published[i] != taken[i] -> taken[i]++
  :: i < 2 && published[i] == taken[i] -> i++
  :: i == 2 -> break
  od;
  if
  :: DONE(0) && DONE(1) -> goto done
  :: else -> skip
  fi;

  if /* looks_try: a ring since then is a reason to receive again; nothing else follows from it */
  :: rings != seen -> goto receive
  :: skip
  fi;

#ifdef ARM_LATE /* looks before it arms, and not again */
  goto look;
arm:
#endif
  parked_stores!1; /* doorbell_arm: the store of parked */
#ifndef NO_FENCE
  empty(parked_stores);
#endif
#ifdef ARM_ONCE
  if
  :: !is_armed -> armed = rings; is_armed = true
  :: is_armed -> skip
  fi;
#else
  armed = rings; /* doorbell_arm: the load of rings */
#endif
#ifdef ARM_LATE
  goto park;
#endif

look: /* ledger_has_news; desk_take and desk_stopping: once more, after arming */
#ifndef NO_LOOK
  i = 0;
  do
#ifdef LOOK_AT_ONE
  :: i < 1 && published[i] != taken[i] -> goto disarm
  :: i < 1 && published[i] == taken[i] -> i = 2
#else
  :: i < 2 && published[i] != taken[i] -> goto disarm
  :: i < 2 && published[i] == taken[i] -> i++
#endif
  :: i == 2 -> break
  od;
#endif
#ifdef ARM_LATE
  goto arm;
#endif

park: /* doorbell_park, platform_park: FUTEX_WAIT compares and sleeps in one step */
  if
#ifdef NO_COMPARE
  :: asleep = true
#else
  :: atomic { rings == armed -> asleep = true }
  :: atomic { rings != armed -> goto disarm }
#endif
  fi;
  if
  :: !asleep -> skip                                         /* woken */
  :: atomic { spurious < SPURIOUS -> spurious++; asleep = false } /* -EINTR, or 0 for no reason */
#ifndef NO_SLICE
  :: atomic { SLICE_NEEDED -> asleep = false }                    /* -ETIMEDOUT */
#endif
  fi;

disarm: /* doorbell_disarm: a relaxed store, so it may stay in the buffer */
#ifndef ARM_ONCE
  armed = 0;
#endif
  parked_stores!0;
  goto receive;

done:
  assert(taken[0] == published[0] && taken[1] == published[1]);
  assert(FAILED(0) || taken[0] == NEWS);
  assert(FAILED(1) || taken[1] == NEWS)
}

/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Looks before parking.
 *
 * To park and to be woken are a system call on each side, and in a virtual machine a wake is an
 * interrupt to a core that sleeps: 10 to 30 us. Where news comes sooner, to look for it is cheaper
 * for both; where it does not, the look takes a core from the process that makes the news.
 *
 * What the looks have found decides. Tried on two cores, with strangers beside and without: where
 * looks pay, 0.98 of them and more find something, and 0.19 at most where both processes run on one
 * core, which a kernel may choose although two are free. So looks go on while at least half of the
 * last 64 found something.
 *
 * Otherwise one wait in LOOKS_EVERY tries again, then half as often after each try in vain, but one
 * wait in each second does. Who is woken by system calls is late for a look, so a try is longer,
 * and goes on as long as it finds something: after TRIES of them in a row looks are believed again.
 *
 * A look that is over late was preempted, and is one in vain, whatever it has found: its process
 * lacked a core.
 *
 * The number of cores bounds all this from above, and is the caller's to ask.
 *
 * Nothing is decided by what a look sees but to look for news again: the proof in doorbell.c is of
 * an owner that arms, looks and parks, however often it has looked before.
 */

#include "looks.h"

#define LOOK_NS INT64_C(20000)
#define TRY_NS (2 * LOOK_NS)
#define LOOKS_EVERY UINT64_C(64)
#define LOOKS_EVERY_MOST (UINT64_C(1) << 20)
#define SECOND_NS INT64_C(1000000000)

enum { BETWEEN_CLOCKS = 16, BELIEVED = 32, TRIES = 4, SIMULATED = 3 };

static bool pays(const struct looks *looks) {
  return __builtin_popcountll(looks->in_vain) <= BELIEVED;
}

static bool is_worth_it(struct looks *looks, int64_t now) {
  if (pays(looks) || looks->tries > 0) return true;
  looks->waits++;
  return looks->waits >= looks->every || now - looks->looked_ns >= SECOND_NS;
}

static bool is_rung(struct doorbell *bell, uint32_t seen) {
  for (int i = 0; i < (IS_SIMULATED ? 1 : BETWEEN_CLOCKS); i++) {
    if (doorbell_count(bell) != seen) return true;
    platform_relax();
  }
  return false;
}

static void note_try(struct looks *looks, bool has_found) {
  looks->waits = 0;
  if (!has_found) {
    looks->tries = 0;
    if (looks->every < LOOKS_EVERY_MOST) looks->every *= 2;
  } else if (++looks->tries == TRIES) {
    looks->in_vain = 0;
  }
}

static void note(struct looks *looks, bool has_found, int64_t began, int64_t ended) {
  bool was_try = !pays(looks);
  looks->in_vain = looks->in_vain << 1 | !has_found;
  looks->found_count += has_found;
  looks->vain_count += !has_found;
  looks->ns += (uint64_t)(ended - began);
  looks->looked_ns = ended;
  if (was_try) note_try(looks, has_found);
  if (!pays(looks)) return;
  looks->tries = 0;
  looks->every = LOOKS_EVERY;
}

bool looks_try(struct looks *looks, const _Atomic uint32_t *may_look, struct doorbell *bell,
               uint32_t seen) {
  /* relaxed: nothing is read because of it. */
  if (!atomic_load_explicit(may_look, memory_order_relaxed)) return false;
  int64_t began = platform_now_ns();
  if (!is_worth_it(looks, began)) return false;
  int64_t longest = pays(looks) ? LOOK_NS : TRY_NS;
  bool found = false;
  int64_t now = began;
  /* A clock of the simulation stands still. */
  for (int turn = 0; !found && now - began < longest; turn++) {
    if (IS_SIMULATED && turn == SIMULATED) break;
    found = is_rung(bell, seen);
    now = platform_now_ns();
  }
  note(looks, found && now - began < longest, began, now);
  return found;
}

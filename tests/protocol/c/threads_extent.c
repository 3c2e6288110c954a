/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * One thread enters extents and others take them out, so places go from one stretch of memory to
 * another all the time. Meanwhile all ask: about memory that they keep there, about what they have
 * just taken out, and about bytes between the stretches, which a mixture of two would hold.
 */

#include "check.h"
#include "extent.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { LANES = 3, LENGTH_MOST = 40, ROUNDS = 200000 };

/* A stretch of memory in which one extent lies at a time; the last byte is in none. */
struct lane {
  uint8_t memory[LENGTH_MOST + 1];
  uint8_t *start;
  uint64_t length;
  struct extent *extent;
  _Atomic bool entered; /* true: its thread's turn; false: the entering thread's turn */
};

static struct lane lanes[LANES];
static uint8_t kept[10];
static _Atomic bool is_over;

static void check_what_stays(void) {
  for (int i = 0; i < LANES; i++) CHECK(!extent_holds(&lanes[i].memory[LENGTH_MOST]));
  CHECK(extent_holds(kept) && extent_holds(kept + 9));
}

static void *take_out(void *argument) {
  struct lane *lane = argument;
  while (!atomic_load(&is_over)) {
    check_what_stays();
    if (!atomic_load(&lane->entered)) {
      sched_yield();
      continue;
    }
    CHECK(extent_holds(lane->start) && extent_holds(lane->start + lane->length - 1));
    CHECK(!extent_holds(lane->start + lane->length));
    extent_leave(lane->extent);
    CHECK(!extent_holds(lane->start) && !extent_holds(lane->start + lane->length - 1));
    atomic_store(&lane->entered, false);
  }
  return NULL;
}

/* Some extents start at the same byte as the one before and are longer or shorter. */
static void enter(struct lane *lane, uint64_t *random) {
  lane->start = lane->memory + 8 * random_below(random, 2);
  lane->length = 1 + random_below(random, LENGTH_MOST - 9);
  lane->extent = extent_enter(lane->start, lane->length);
  CHECK(lane->extent != NULL);
  CHECK(extent_holds(lane->start));
  atomic_store(&lane->entered, true);
}

TEST(answers_are_exact_while_others_come_and_go) {
  pthread_t threads[LANES];
  atomic_store(&is_over, false);
  uint64_t random = random_start(1);
  struct extent *stays = extent_enter(kept, sizeof kept);
  for (int i = 0; i < LANES; i++) {
    CHECK_EQUAL(0, pthread_create(&threads[i], NULL, take_out, &lanes[i]));
  }
  for (struct limit limit = limit_of(0.5, ROUNDS); limit_allows(&limit);) {
    struct lane *lane = &lanes[random_below(&random, LANES)];
    if (!atomic_load(&lane->entered)) enter(lane, &random);
    check_what_stays();
  }
  atomic_store(&is_over, true);
  for (int i = 0; i < LANES; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < LANES; i++) {
    if (atomic_load(&lanes[i].entered)) extent_leave(lanes[i].extent);
  }
  extent_leave(stays);
  CHECK(!extent_holds(kept));
}

static uint8_t low_gap_high[3 * LENGTH_MOST];

static void *ask_about_the_gap(void *argument) {
  (void)argument;
  while (!atomic_load(&is_over)) CHECK(!extent_holds(low_gap_high + LENGTH_MOST + 5));
  return NULL;
}

/* One place goes to and back between two stretches: nothing between them is ever in an extent. */
TEST(place_that_moves_holds_nothing_between) {
  pthread_t threads[LANES];
  atomic_store(&is_over, false);
  for (int i = 0; i < LANES; i++) {
    CHECK_EQUAL(0, pthread_create(&threads[i], NULL, ask_about_the_gap, NULL));
  }
  for (struct limit limit = limit_of(0.5, 20 * ROUNDS); limit_allows(&limit);) {
    extent_leave(extent_enter(low_gap_high, LENGTH_MOST));
    extent_leave(extent_enter(low_gap_high + 2 * LENGTH_MOST, LENGTH_MOST));
  }
  atomic_store(&is_over, true);
  for (int i = 0; i < LANES; i++) pthread_join(threads[i], NULL);
}

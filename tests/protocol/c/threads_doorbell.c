/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Owners and ringers as threads, with news in rings. Every wait has a timeout that is never to be
 * reached: reaching it means that a ring was missed.
 */

#include "check.h"
#include "doorbell.h"
#include "ring.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#define MISSED_NS INT64_C(10000000000)

enum { RINGERS = 3, CAPACITY = 2 };

/* A ring with the bell that its writer rings. */
struct line {
  struct ring *ring;
  struct doorbell *bell;
};

static struct ring *new_ring(uint32_t start_pos) {
  struct ring *ring = aligned_alloc(CACHE_LINE, ring_bytes(CAPACITY));
  CHECK(ring != NULL);
  ring_init(ring, start_pos);
  return ring;
}

static bool any_has_value(struct ring_reader *readers, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (ring_has_value(&readers[i])) return true;
  }
  return false;
}

/* What every owner does: look, arm, look again, park. */
static void wait_for_value(struct doorbell *bell, struct ring_reader *readers, size_t count) {
  while (!any_has_value(readers, count)) {
    uint32_t armed = doorbell_arm(bell);
    if (!any_has_value(readers, count)) {
      int outcome = doorbell_park(bell, armed, MISSED_NS);
      CHECK(outcome == 0, "outcome %d", outcome);
    }
    doorbell_disarm(bell);
  }
}

static void linger(uint64_t *random) {
  uint64_t turns = random_below(random, 64);
  if (turns == 0) sched_yield();
  for (volatile uint64_t i = 0; i < turns; i = i + 1) continue;
}

/* Both sides own a bell; each waits for the other's value and sends the next. */
struct side {
  struct line in, out;
  bool begins;
  uint32_t rounds;
};

static void *play(void *argument) {
  struct side *side = argument;
  struct ring_reader reader = ring_open_reader(side->in.ring, CAPACITY);
  struct ring_writer writer = ring_open_writer(side->out.ring, CAPACITY);
  uint64_t random = random_start(side->begins);
  for (uint32_t round = 0; round < side->rounds; round++) {
    uint32_t value;
    if (!side->begins || round > 0) {
      wait_for_value(side->in.bell, &reader, 1);
      CHECK(ring_pop(&reader, &value));
      CHECK_EQUAL(side->begins ? round - 1 : round, value);
    }
    linger(&random);
    CHECK(ring_push(&writer, round));
    doorbell_ring(side->out.bell);
  }
  return NULL;
}

static void ping_pong(uint32_t rounds) {
  struct doorbell bells[2] = {0};
  struct line lines[2];
  for (int i = 0; i < 2; i++) lines[i] = (struct line){new_ring(UINT32_MAX - 5), &bells[i]};
  struct side sides[2] = {{lines[0], lines[1], true, rounds}, {lines[1], lines[0], false, rounds}};
  pthread_t thread;
  atomic_store(&bells[0].rings, UINT32_MAX - 3);
  CHECK_EQUAL(0, pthread_create(&thread, NULL, play, &sides[1]));
  play(&sides[0]);
  pthread_join(thread, NULL);
  for (int i = 0; i < 2; i++) free(lines[i].ring);
}

TEST(ping_pong_misses_no_ring) {
  for (struct limit limit = limit_of(0.5, 100000); limit_allows(&limit);) ping_pong(500);
}

/* Several ringers, one owner, as with the trainer's doorbell. */
static uint32_t ringer_values;

static void *ring_values(void *argument) {
  struct line *line = argument;
  struct ring_writer writer = ring_open_writer(line->ring, CAPACITY);
  uint64_t random = random_start((uintptr_t)line);
  for (uint32_t value = 0; value < ringer_values; value++) {
    linger(&random);
    while (!ring_push(&writer, value)) sched_yield();
    doorbell_ring(line->bell);
  }
  return NULL;
}

static void pop_all(struct doorbell *bell, struct ring_reader *readers) {
  uint32_t expected[RINGERS] = {0};
  for (uint64_t left = (uint64_t)RINGERS * ringer_values; left > 0;) {
    wait_for_value(bell, readers, RINGERS);
    for (int i = 0; i < RINGERS; i++) {
      uint32_t value;
      if (!ring_pop(&readers[i], &value)) continue;
      CHECK_EQUAL(expected[i]++, value);
      left--;
    }
  }
}

static void many_ringers(void) {
  struct doorbell bell = {0};
  struct line lines[RINGERS];
  struct ring_reader readers[RINGERS];
  pthread_t threads[RINGERS];
  for (int i = 0; i < RINGERS; i++) {
    lines[i] = (struct line){new_ring(UINT32_MAX), &bell};
    readers[i] = ring_open_reader(lines[i].ring, CAPACITY);
    CHECK_EQUAL(0, pthread_create(&threads[i], NULL, ring_values, &lines[i]));
  }
  pop_all(&bell, readers);
  for (int i = 0; i < RINGERS; i++) {
    pthread_join(threads[i], NULL);
    free(lines[i].ring);
  }
  CHECK_EQUAL(RINGERS * ringer_values, atomic_load(&bell.rings));
}

TEST(many_ringers_are_all_heard) {
  ringer_values = 500;
  for (struct limit limit = limit_of(0.5, 100000); limit_allows(&limit);) many_ringers();
}

/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A writer thread and a reader thread on one ring. A value names a payload in a table, as a slot's
 * number names a slot: the reader checks the payload's checksum, and that each value comes once, in
 * order. Payloads are plain memory, so ThreadSanitizer sees whether the ring orders them.
 */

#include "check.h"
#include "ring.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

enum { WORDS = 8, CAPACITY_MOST = 8 };

struct payload {
  uint64_t words[WORDS];
  uint64_t checksum;
};

struct lane {
  struct ring *ring;
  uint32_t capacity;
  uint64_t values;
  /* One payload more than cells: the writer may be filling the next while the ring is full. */
  struct payload payloads[CAPACITY_MOST + 1];
};

static void fill(struct payload *payload, uint64_t number) {
  payload->checksum = 0;
  for (int i = 0; i < WORDS; i++) {
    payload->words[i] = number * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)i;
    payload->checksum ^= payload->words[i];
  }
}

static void check_payload(const struct payload *payload, uint64_t number) {
  uint64_t checksum = 0;
  CHECK_EQUAL(number * UINT64_C(0x9e3779b97f4a7c15), payload->words[0]);
  for (int i = 0; i < WORDS; i++) checksum ^= payload->words[i];
  CHECK_EQUAL(payload->checksum, checksum);
}

static void *write_all(void *argument) {
  struct lane *lane = argument;
  struct ring_writer writer = ring_open_writer(lane->ring, lane->capacity);
  uint64_t random = random_start(1);
  for (uint64_t number = 0; number < lane->values; number++) {
    /*
     * A payload is written before its value is pushed. The one of capacity + 1 values ago is free,
     * because the last push of all found room: its reader had popped that value and looked first.
     */
    struct payload *payload = &lane->payloads[number % (lane->capacity + 1)];
    fill(payload, number);
    while (!ring_push(&writer, (uint32_t)number)) sched_yield();
    if (random_below(&random, 256) == 0) sched_yield();
  }
  return NULL;
}

static void read_all(struct lane *lane, struct ring_reader *reader) {
  uint64_t random = random_start(2);
  for (uint64_t number = 0; number < lane->values; number++) {
    uint32_t value;
    /* Looked at before the pop, which is what lets the writer use the payload again. */
    while (!ring_has_value(reader)) sched_yield();
    check_payload(&lane->payloads[number % (lane->capacity + 1)], number);
    CHECK(ring_pop(reader, &value));
    CHECK_EQUAL((uint32_t)number, value);
    if (random_below(&random, 256) == 0) sched_yield();
  }
}

static void run_lane(uint32_t capacity, uint32_t start_pos, uint64_t values) {
  struct lane lane = {.capacity = capacity, .values = values};
  pthread_t writer;
  uint32_t value;
  lane.ring = aligned_alloc(CACHE_LINE, ring_bytes(capacity));
  CHECK(lane.ring != NULL);
  ring_init(lane.ring, start_pos);
  struct ring_reader reader = ring_open_reader(lane.ring, capacity);
  CHECK_EQUAL(0, pthread_create(&writer, NULL, write_all, &lane));
  read_all(&lane, &reader);
  pthread_join(writer, NULL);
  CHECK(!ring_pop(&reader, &value));
  free(lane.ring);
}

TEST(values_arrive_once_and_whole) {
  static const uint32_t capacities[] = {1, 2, 4, CAPACITY_MOST};
  for (size_t i = 0; i < LENGTH(capacities); i++) {
    uint64_t random = random_start(3 + i);
    for (struct limit limit = limit_of(1.0 / LENGTH(capacities), 1000); limit_allows(&limit);) {
      run_lane(capacities[i], UINT32_MAX - (uint32_t)random_below(&random, 3000), 4000);
    }
  }
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* The ring, one step at a time: full, empty, wrap-around of cells and of positions. */

#include "check.h"
#include "ring.h"

#include <stdlib.h>

static const uint32_t capacities[] = {1, 2, 4, 8};

/* Two ends of a ring whose positions start here. */
struct ends {
  struct ring *ring;
  struct ring_writer writer;
  struct ring_reader reader;
};

static struct ends ends_new(uint32_t capacity, uint32_t start_pos) {
  struct ends ends = {.ring = aligned_alloc(CACHE_LINE, ring_bytes(capacity))};
  CHECK(ends.ring != NULL);
  memset(ends.ring, 0xee, ring_bytes(capacity));
  ring_init(ends.ring, start_pos);
  ends.writer = ring_open_writer(ends.ring, capacity);
  ends.reader = ring_open_reader(ends.ring, capacity);
  return ends;
}

static void check_pop(struct ends *ends, uint32_t expected) {
  uint32_t value = 0xdead;
  CHECK(ring_pop(&ends->reader, &value));
  CHECK_EQUAL(expected, value);
}

static void check_empty(struct ends *ends) {
  uint32_t value = 0xdead;
  CHECK(!ring_has_value(&ends->reader));
  CHECK(!ring_pop(&ends->reader, &value));
  CHECK_EQUAL(0xdead, value);
  CHECK_EQUAL(0, ring_length(&ends->reader));
}

TEST(capacity_is_the_next_power_of_two) {
  static const uint32_t pairs[][2] = {{1, 1}, {2, 2}, {3, 4}, {4, 4}, {5, 8}, {9, 16}};
  for (size_t i = 0; i < LENGTH(pairs); i++) {
    CHECK_EQUAL(pairs[i][1], ring_capacity(pairs[i][0]));
  }
  CHECK_EQUAL(RING_CAPACITY_MAX, ring_capacity(RING_CAPACITY_MAX));
  CHECK_EQUAL(UINT32_C(1) << 31, ring_capacity(UINT32_C(1) << 31));
}

/* Full holds capacity values, refuses one more unchanged, and takes one again after each pop. */
TEST(full_refuses) {
  for (size_t i = 0; i < LENGTH(capacities); i++) {
    uint32_t capacity = capacities[i];
    struct ends ends = ends_new(capacity, UINT32_MAX - 1);
    for (uint32_t value = 0; value < capacity; value++) CHECK(ring_push(&ends.writer, value));
    CHECK(!ring_push(&ends.writer, 99), "capacity %u", capacity);
    CHECK_EQUAL(capacity, ring_length(&ends.reader));
    check_pop(&ends, 0);
    CHECK(ring_push(&ends.writer, capacity));
    CHECK(!ring_push(&ends.writer, 99));
    for (uint32_t value = 1; value <= capacity; value++) check_pop(&ends, value);
    check_empty(&ends);
    free(ends.ring);
  }
}

/* Every fill level at every distance from the largest position, over several laps. */
TEST(positions_wrap) {
  for (size_t i = 0; i < LENGTH(capacities); i++) {
    for (uint32_t before = 0; before < 20; before++) {
      struct ends ends = ends_new(capacities[i], UINT32_MAX - before);
      uint32_t pushed = 0;
      for (uint32_t popped = 0; popped < 40;) {
        uint32_t burst = 1 + popped % capacities[i];
        for (uint32_t n = 0; n < burst; n++) CHECK(ring_push(&ends.writer, pushed++));
        for (uint32_t n = 0; n < burst; n++) check_pop(&ends, popped++);
      }
      check_empty(&ends);
      free(ends.ring);
    }
  }
}

/* Ends opened on a ring in use go on where it stands. */
TEST(ends_open_at_the_published_positions) {
  struct ends ends = ends_new(4, UINT32_MAX);
  for (uint32_t value = 0; value < 3; value++) CHECK(ring_push(&ends.writer, value));
  check_pop(&ends, 0);
  ends.writer = ring_open_writer(ends.ring, 4);
  ends.reader = ring_open_reader(ends.ring, 4);
  CHECK(ring_push(&ends.writer, 3));
  CHECK(ring_push(&ends.writer, 4));
  CHECK(!ring_push(&ends.writer, 5));
  for (uint32_t value = 1; value <= 4; value++) check_pop(&ends, value);
  check_empty(&ends);
  free(ends.ring);
}

/* Any value in the other side's position: nothing outside the cells is read or written. */
TEST(hostile_positions_stay_inside_the_cells) {
  uint64_t random = random_start(1);
  for (int round = 0; round < 2000; round++) {
    uint32_t capacity = capacities[random_below(&random, LENGTH(capacities))];
    struct ends ends = ends_new(capacity, (uint32_t)random_next(&random));
    uint8_t *canary = (uint8_t *)&ends.ring->cells[capacity];
    size_t canary_bytes = ring_bytes(capacity) - (size_t)(canary - (uint8_t *)ends.ring);
    for (int step = 0; step < 30; step++) {
      uint32_t value;
      atomic_store(&ends.ring->write_pos, (uint32_t)random_next(&random));
      ring_pop(&ends.reader, &value);
      atomic_store(&ends.ring->read_pos, (uint32_t)random_next(&random));
      ring_push(&ends.writer, (uint32_t)step);
    }
    for (size_t i = 0; i < canary_bytes; i++) CHECK_EQUAL(0xee, canary[i]);
    free(ends.ring);
  }
}

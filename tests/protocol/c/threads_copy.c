/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Streamed bytes handed through a ring: the reader, on another core, finds them all. A streaming
 * store that the release of the ring did not wait for would leave the bytes of an older round.
 */

#include "check.h"
#include "copy.h"
#include "ring.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

enum { SLOTS = 2, SLOT_BYTES = 1 << 15, CANARY = 0x5c, EDGE = 64, ROUNDS_MOST = 1 << 20 };

#define LAST UINT32_MAX

struct handover {
  struct ring *ready, *empty;
  uint8_t *slots[SLOTS];
  struct limit limit;
};

/* What a round writes: where in the slot, how long, and which bytes. */
struct round {
  size_t shift, bytes;
  uint8_t first;
};

static struct round round_of(uint32_t number) {
  uint64_t random = random_start(number);
  struct round round = {.shift = EDGE + random_below(&random, 64)};
  round.bytes = 1 + random_below(&random, random_below(&random, 2) ? 300 : SLOT_BYTES - 4 * EDGE);
  round.first = (uint8_t)random_next(&random);
  return round;
}

static uint8_t byte_of(const struct round *round, size_t i) {
  return (uint8_t)(round->first + i * 7 + i / 251);
}

static void write_round(struct handover *handover, uint32_t slot, uint32_t number) {
  static uint8_t source[SLOT_BYTES];
  struct round round = round_of(number);
  for (size_t i = 0; i < round.bytes; i++) source[i] = byte_of(&round, i);
  memset(handover->slots[slot], CANARY, SLOT_BYTES);
  copy_stream(handover->slots[slot] + round.shift, source, round.bytes);
}

static void check_round(const uint8_t *slot, uint32_t number) {
  struct round round = round_of(number);
  for (size_t i = 0; i < round.bytes; i++) {
    CHECK(slot[round.shift + i] == byte_of(&round, i), "byte %zu of round %u", i, number);
  }
  for (size_t i = 0; i < EDGE; i++) {
    CHECK_EQUAL(CANARY, slot[round.shift - 1 - i]);
    CHECK_EQUAL(CANARY, slot[round.shift + round.bytes + i]);
  }
}

static uint32_t pop(struct ring_reader *reader) {
  uint32_t value;
  while (!ring_pop(reader, &value)) sched_yield();
  return value;
}

/* Round after round into the slots in turn, each as soon as its last reader is done. */
static void *write_rounds(void *argument) {
  struct handover *handover = argument;
  struct ring_writer ready = ring_open_writer(handover->ready, SLOTS);
  struct ring_reader empty = ring_open_reader(handover->empty, SLOTS);
  uint32_t number = 0;
  for (; limit_allows(&handover->limit); number++) {
    write_round(handover, pop(&empty), number);
    CHECK(ring_push(&ready, number));
  }
  pop(&empty);
  CHECK(ring_push(&ready, LAST));
  return NULL;
}

static void read_rounds(struct handover *handover) {
  struct ring_reader ready = ring_open_reader(handover->ready, SLOTS);
  struct ring_writer empty = ring_open_writer(handover->empty, SLOTS);
  for (uint32_t slot = 0; slot < SLOTS; slot++) CHECK(ring_push(&empty, slot));
  uint32_t expected = 0, number;
  while ((number = pop(&ready)) != LAST) {
    CHECK_EQUAL(expected++, number);
    check_round(handover->slots[number % SLOTS], number);
    CHECK(ring_push(&empty, number % SLOTS));
  }
}

static void *lines_new(size_t bytes) {
  void *memory = aligned_alloc(CACHE_LINE, bytes);
  CHECK(memory != NULL);
  return memory;
}

TEST(streamed_bytes_are_there_when_the_ring_says_so) {
  struct handover handover = {.limit = limit_of(1, ROUNDS_MOST)};
  pthread_t writer;
  handover.ready = lines_new(ring_bytes(SLOTS));
  handover.empty = lines_new(ring_bytes(SLOTS));
  ring_init(handover.ready, UINT32_MAX);
  ring_init(handover.empty, UINT32_MAX);
  for (int i = 0; i < SLOTS; i++) handover.slots[i] = lines_new(SLOT_BYTES);
  CHECK_EQUAL(0, pthread_create(&writer, NULL, write_rounds, &handover));
  read_rounds(&handover);
  pthread_join(writer, NULL);
  for (int i = 0; i < SLOTS; i++) free(handover.slots[i]);
  free(handover.ready);
  free(handover.empty);
}

/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Hops and copies without Python, for the microbenchmarks.
 *
 * Two processes share a piece of memory with one lane each: the doorbell its owner parks on, and the
 * ring that the other one pushes to. Side 0 sends a value and waits until side 1 has sent it back;
 * one trip is two hops. Whoever waits gives up after a while, so that neither outlives the other.
 */

#include "copy.h"
#include "doorbell.h"
#include "ring.h"

#define CELLS 4
#define STOP 0
#define VALUE 1
#define SPINS 4096
#define SLICE_NS INT64_C(100000000)
#define PATIENCE_NS INT64_C(30000000000)

struct side {
  struct ring_writer out;
  struct ring_reader in;
  struct doorbell *own_bell;
  struct doorbell *other_bell;
  bool parks;
};

static size_t lane_bytes(void) { return sizeof(struct doorbell) + ring_bytes(CELLS); }

static struct doorbell *lane_bell(uint8_t *memory, int number) {
  return (struct doorbell *)(memory + (size_t)number * lane_bytes());
}

static struct ring *lane_ring(uint8_t *memory, int number) {
  return (struct ring *)(lane_bell(memory, number) + 1);
}

static struct side side_open(uint8_t *memory, int number, bool parks) {
  return (struct side){.out = ring_open_writer(lane_ring(memory, 1 - number), CELLS),
                       .in = ring_open_reader(lane_ring(memory, number), CELLS),
                       .own_bell = lane_bell(memory, number),
                       .other_bell = lane_bell(memory, 1 - number),
                       .parks = parks};
}

static void side_send(struct side *side, uint32_t value) {
  (void)ring_push(&side->out, value);
  doorbell_ring(side->other_bell);
}

static void side_park(struct side *side) {
  uint32_t armed = doorbell_arm(side->own_bell);
  if (!ring_has_value(&side->in)) (void)doorbell_park(side->own_bell, armed, SLICE_NS);
  doorbell_disarm(side->own_bell);
}

static bool side_look(struct side *side, uint32_t *value) {
  for (int spin = 0; spin < SPINS; spin++) {
    if (ring_pop(&side->in, value)) return true;
    if (side->parks) side_park(side);
  }
  return false;
}

static uint32_t side_receive(struct side *side) {
  uint32_t value = STOP;
  int64_t deadline = platform_now_ns() + PATIENCE_NS;
  while (!side_look(side, &value) && platform_now_ns() < deadline) continue;
  return value;
}

size_t hop_bytes(void);
size_t hop_bytes(void) { return 2 * lane_bytes(); }

/* Send a value there and back; how many trips came back. */
uint32_t hop_trips(uint8_t *memory, uint32_t trips, bool parks);
uint32_t hop_trips(uint8_t *memory, uint32_t trips, bool parks) {
  struct side side = side_open(memory, 0, parks);
  uint32_t done = 0;
  while (done < trips) {
    side_send(&side, VALUE);
    if (side_receive(&side) != VALUE) break;
    done++;
  }
  return done;
}

/* Send back what comes until hop_stop. */
void hop_echo(uint8_t *memory, bool parks);
void hop_echo(uint8_t *memory, bool parks) {
  struct side side = side_open(memory, 1, parks);
  while (side_receive(&side) == VALUE) side_send(&side, VALUE);
}

void hop_stop(uint8_t *memory);
void hop_stop(uint8_t *memory) {
  struct side side = side_open(memory, 0, false);
  side_send(&side, STOP);
}

/* Ring a doorbell, with its owner announced as parked or not: with and without the system call. */
void bell_ring_often(uint8_t *memory, uint32_t times, bool parked);
void bell_ring_often(uint8_t *memory, uint32_t times, bool parked) {
  struct doorbell *bell = lane_bell(memory, 0);
  if (parked) (void)doorbell_arm(bell);
  for (uint32_t i = 0; i < times; i++) doorbell_ring(bell);
  doorbell_disarm(bell);
}

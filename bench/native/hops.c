/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Hops without Python, for the microbenchmarks.
 *
 * Two processes share a piece of memory with one lane each: the doorbell its owner parks on, and the
 * ring that the other one pushes to. Side 0 sends a value and waits until side 1 has sent it back;
 * one trip is two hops. A waiting side gives up after a while, so that neither outlives the other.
 *
 * A stream goes one way: side 0 sends values with a gap before each, side 1 works on each for a
 * while and at the end answers how often it parked. doorbell.c is a part of this file so that the
 * system calls of parking and waking can be counted at the call.
 */

#include "copy.h"
#include "ring.h"

static uint32_t parks_made;
static uint32_t wakes_made;

static int counted_park(_Atomic uint32_t *word, uint32_t expected, int64_t timeout_ns) {
  parks_made++;
  return platform_park(word, expected, timeout_ns);
}

static void counted_unpark(_Atomic uint32_t *word) {
  wakes_made++;
  platform_unpark(word);
}

#define platform_park counted_park
#define platform_unpark counted_unpark
#include "doorbell.c"

#define CELLS 64
#define STOP 0
#define VALUE 1
#define LAST 2
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

/* Send a value there and back. Returns how many trips came back. */
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

/* Send each value back until hop_stop. */
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

static void spin_for(int64_t spin_ns) {
  int64_t end = platform_now_ns() + spin_ns;
  while (spin_ns > 0 && platform_now_ns() < end) continue;
}

/* Returns false if the other side has stopped taking values. */
static bool side_push(struct side *side, uint32_t value) {
  int64_t deadline = platform_now_ns() + PATIENCE_NS;
  while (!ring_push(&side->out, value))
    if (platform_now_ns() > deadline) return false;
  doorbell_ring(side->other_bell);
  return true;
}

/* Send values with a gap before each. Returns wakes << 32 | the other side's parks, or all ones. */
uint64_t stream_send(uint8_t *memory, uint32_t values, int64_t gap_ns);
uint64_t stream_send(uint8_t *memory, uint32_t values, int64_t gap_ns) {
  struct side side = side_open(memory, 0, false);
  wakes_made = 0;
  for (uint32_t i = 0; i < values; i++) {
    spin_for(gap_ns);
    if (!side_push(&side, i + 1 < values ? VALUE : LAST)) return UINT64_MAX;
  }
  uint64_t wakes = wakes_made;
  uint32_t answer = side_receive(&side);
  return answer == STOP ? UINT64_MAX : wakes << 32 | (answer - 1);
}

/* Work on each value and answer each LAST with the parks so far plus one, until hop_stop. */
void stream_receive(uint8_t *memory, int64_t work_ns);
void stream_receive(uint8_t *memory, int64_t work_ns) {
  struct side side = side_open(memory, 1, true);
  for (uint32_t value; (value = side_receive(&side)) != STOP;) {
    spin_for(work_ns);
    if (value != LAST) continue;
    side_send(&side, parks_made + 1);
    parks_made = 0;
  }
}

/* Ring a doorbell, with its owner announced as parked or not: with and without the system call. */
void bell_ring_often(uint8_t *memory, uint32_t times, bool parked);
void bell_ring_often(uint8_t *memory, uint32_t times, bool parked) {
  struct doorbell *bell = lane_bell(memory, 0);
  if (parked) (void)doorbell_arm(bell);
  for (uint32_t i = 0; i < times; i++) doorbell_ring(bell);
  doorbell_disarm(bell);
}

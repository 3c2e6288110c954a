// SPDX-License-Identifier: BSD-3-Clause

// Two rings between two threads: slots go out filled and come back read, and the rings wrap.

#include "shim.hpp"

enum { SLOTS = 2, CELLS = 2, ROUNDS = 5 };

struct filled_and_read : rl::test_suite<filled_and_read, 2> {
#include "sources.inc"

  ring ready, free_slots;
  rl::var<int> batches[SLOTS];

  void before() {
    ring_init(&ready, UINT32_MAX);
    ring_init(&free_slots, 0);
    ring_writer all = ring_open_writer(&free_slots, CELLS);
    for (uint32_t slot = 0; slot < SLOTS; slot++) RL_ASSERT(ring_push(&all, slot));
  }

  void thread(unsigned index) {
    if (index == 0) fill();
    else read();
  }

  uint32_t take(ring_reader *end) {
    uint32_t slot = SLOTS;
    rl::linear_backoff backoff;
    while (!ring_pop(end, &slot)) backoff.yield($);
    return slot;
  }

  void fill() {
    ring_writer out = ring_open_writer(&ready, CELLS);
    ring_reader back = ring_open_reader(&free_slots, CELLS);
    for (int round = 0; round < ROUNDS; round++) {
      uint32_t slot = take(&back);
      batches[slot]($) = round;
      RL_ASSERT(ring_push(&out, slot));
    }
  }

  void read() {
    ring_reader in = ring_open_reader(&ready, CELLS);
    ring_writer back = ring_open_writer(&free_slots, CELLS);
    for (int round = 0; round < ROUNDS; round++) {
      uint32_t slot = take(&in);
      RL_ASSERT(!ring_is_overrun(&in));
      RL_ASSERT(batches[slot]($) == round);
      RL_ASSERT(ring_push(&back, slot));
    }
  }
};

int main() { return played<filled_and_read>(50000); }

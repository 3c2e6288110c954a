// SPDX-License-Identifier: BSD-3-Clause

// Two threads publish news and ring; a third arms, looks and parks, and gets all of it.

#include "shim.hpp"

enum { CELLS = 2, RINGERS = 2 };

struct rung_and_parked : rl::test_suite<rung_and_parked, RINGERS + 1> {
  futex kernel;

  int platform_park(shared<uint32_t> *word, uint32_t expected, int64_t) {
    return kernel.park(word, expected);
  }
  void platform_unpark(shared<uint32_t> *) { kernel.unpark(); }

#include "sources.inc"

  ring news[RINGERS];
  doorbell bell;

  void before() {
    bell.rings.store(0, memory_order_relaxed);
    bell.parked.store(0, memory_order_relaxed);
    for (ring &each : news) ring_init(&each, 0);
  }

  void thread(unsigned index) {
    if (index == RINGERS) return listen();
    ring_writer out = ring_open_writer(&news[index], CELLS);
    RL_ASSERT(ring_push(&out, index));
    doorbell_ring(&bell);
  }

  void listen() {
    ring_reader ends[RINGERS] = {ring_open_reader(&news[0], CELLS),
                                 ring_open_reader(&news[1], CELLS)};
    for (int heard = 0; heard < RINGERS;) {
      uint32_t armed = doorbell_arm(&bell);
      bool has_news = ring_has_value(&ends[0]) || ring_has_value(&ends[1]);
      if (!has_news) (void)doorbell_park(&bell, armed, 0);
      doorbell_disarm(&bell);
      uint32_t value = 0;
      for (ring_reader &end : ends) heard += ring_pop(&end, &value);
    }
  }
};

int main() { return played<rung_and_parked>(50000); }

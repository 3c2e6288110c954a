/* SPDX-License-Identifier: BSD-3-Clause */

/* Two ringers and an owner that parks until it has seen the news of both: never for ever. */

#include "doorbell.c"

enum { RINGERS = 2 };

struct doorbell_program : rl::test_suite<doorbell_program, RINGERS + 1> {
  struct doorbell bell;
  rl::atomic<uint32_t> news[RINGERS];

  void before() {
    bell.rings.store(0, memory_order_relaxed);
    bell.parked.store(0, memory_order_relaxed);
    for (auto &word : news) word.store(0, memory_order_relaxed);
  }

  uint32_t look() {
    uint32_t seen = 0;
    for (auto &word : news) seen += word.load(memory_order_acquire);
    return seen;
  }

  void own() {
    while (look() < RINGERS) {
      uint32_t armed = doorbell_arm(&bell);
      if (look() < RINGERS) doorbell_park(&bell, armed, 0);
      doorbell_disarm(&bell);
    }
  }

  void thread(unsigned index) {
    if (index == RINGERS) return own();
    news[index].store(1, memory_order_release);
    doorbell_ring(&bell);
  }
};

int main(int, char **arguments) { return explore<doorbell_program>(arguments); }

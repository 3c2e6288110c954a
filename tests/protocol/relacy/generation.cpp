// SPDX-License-Identifier: BSD-3-Clause

// Two threads ask for their process's number for the first time at once, and get the same.

#include "shim.hpp"

struct asked_at_once : rl::test_suite<asked_at_once, 2> {
  shared<uint64_t> pages[2];

  void *platform_wiped_page(size_t) { return &pages[rl::thread_index()]; }
  void munmap(void *, size_t) {}
  int getpid() { return 0; }

#include "sources.inc"

  uint64_t numbers[2];

  void before() {
    page_start.store(0, memory_order_relaxed);
    newest.store(0, memory_order_relaxed);
    for (auto &page : pages) page.store(0, memory_order_relaxed);
  }

  void thread(unsigned index) {
    numbers[index] = generation_now();
    RL_ASSERT(numbers[index] != 0);
    RL_ASSERT(numbers[index] == generation_now());
  }

  void after() { RL_ASSERT(numbers[0] == numbers[1]); }
};

int main() { return played<asked_at_once>(50000); }

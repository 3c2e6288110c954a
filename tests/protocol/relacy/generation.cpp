/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Three threads ask for the process's number at once, for the first time: all get the same, and one
 * page stays. The source is part of the program, so that its static words begin anew in each run.
 */

#include "generation.h"

#include "platform.h"

enum { THREADS = 3 };

struct generation_program : rl::test_suite<generation_program, THREADS> {
#include "generation.c"

  /* The kernel's zeros, which no thread stored; handed out one by one. */
  rl::atomic<uint64_t> pages[THREADS];
  rl::atomic<uint32_t> mapped, unmapped;
  plain<uint64_t> numbers[THREADS];

  void before() {
    for (auto &page : pages) page.store(0, memory_order_relaxed);
    for (auto *word : {&mapped, &unmapped}) word->store(0, memory_order_relaxed);
    page_start.store(0, memory_order_relaxed);
    newest.store(0, memory_order_relaxed);
  }

  void *platform_wiped_page(size_t) {
    return &pages[atomic_fetch_add_explicit(&mapped, 1, memory_order_relaxed)];
  }
  void munmap(void *, size_t) { atomic_fetch_add_explicit(&unmapped, 1, memory_order_relaxed); }
  int getpid() { return 0; }

  void thread(unsigned index) { numbers[index] = generation_now(); }

  void after() {
    for (auto &number : numbers) RL_ASSERT(number == numbers[0] && number > 0);
    uint32_t left = mapped.load(memory_order_relaxed) - unmapped.load(memory_order_relaxed);
    RL_ASSERT(left == 1);
  }
};

int main(int, char **arguments) { return explore<generation_program>(arguments); }

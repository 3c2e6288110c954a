/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Processes that fill one cache, each killed at any instruction: what is shown is whole, and those
 * that come later fill what is left.
 */

#include "cache_file.h"

#include <signal.h>
#include <sys/prctl.h>

enum { INDICES = 400, ENDS = 3, LIVES_MOST = 100000 };

/* Fetch samples in an order of its own, for ever. */
static _Noreturn void fetch(struct cache *cache, uint64_t stream) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  uint64_t random = random_start(stream);
  for (;;) {
    uint64_t index = random_below(&random, INDICES);
    if (!cache_check(cache, index)) (void)cache_fill(cache, index, random_below(&random, 20000));
  }
}

static void end_child(pid_t child) {
  CHECK_EQUAL(0, kill(child, SIGKILL));
  check_ends_killed(child, SIGKILL);
}

static uint64_t found_in(const struct cache *cache) {
  uint64_t found = 0;
  for (uint64_t index = 0; index < INDICES; index++) found += cache_check(cache, index);
  return found;
}

TEST(killed_process_leaves_whole_records) {
  uint64_t random = random_start(1), lives = 0, caches = 0;
  for (struct limit limit = limit_of(1, LIVES_MOST); limit_allows(&limit); caches++) {
    struct cache cache = cache_new(INDICES, 64 << 20);
    uint64_t before = 0;
    for (int turn = 0; turn < 10; turn++) {
      pid_t children[ENDS];
      for (int i = 0; i < ENDS; i++, lives++) {
        children[i] = fork();
        CHECK(children[i] >= 0);
        if (children[i] == 0) fetch(&cache, lives);
      }
      struct timespec nap = platform_timespec((int64_t)random_below(&random, 2000000));
      nanosleep(&nap, NULL);
      for (int i = 0; i < ENDS; i++) end_child(children[i]);
      uint64_t found = found_in(&cache);
      CHECK(found >= before);
      before = found;
    }
    for (uint64_t index = 0; index < INDICES; index++) (void)cache_fill(&cache, index, 100);
    CHECK_EQUAL(INDICES, found_in(&cache));
    cache_unmap(&cache);
  }
  printf("%" PRIu64 " processes in %" PRIu64 " caches\n", lives, caches);
  CHECK(lives > 0);
}

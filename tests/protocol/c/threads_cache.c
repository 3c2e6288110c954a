/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Threads that stand for processes, each with its own end of one cache, fetch the same samples in
 * orders of their own. What one has shown, another reads at once, byte by byte.
 */

#include "cache_file.h"

#include <pthread.h>

enum { ENDS = 4, INDICES = 600, ROUNDS = 4000 };

struct worker {
  struct cache cache;
  uint64_t stream;
  uint64_t kept;
};

static void *fetch(void *argument) {
  struct worker *worker = argument;
  uint64_t random = random_start(worker->stream);
  for (int i = 0; i < ROUNDS; i++) {
    uint64_t index = random_below(&random, INDICES);
    if (cache_check(&worker->cache, index)) continue;
    worker->kept += cache_fill(&worker->cache, index, random_below(&random, 3000));
  }
  return NULL;
}

TEST(shown_records_are_whole) {
  uint64_t rounds = 0;
  for (struct limit limit = limit_of(1, 200); limit_allows(&limit); rounds++) {
    UNMAPPED struct cache cache = cache_new(INDICES, rounds % 2 ? 600000 : 4 << 20);
    struct worker workers[ENDS];
    pthread_t threads[ENDS];
    uint64_t kept = 0, found = 0;
    for (int i = 0; i < ENDS; i++) {
      workers[i] = (struct worker){cache_again(&cache), rounds * ENDS + (uint64_t)i, 0};
      CHECK_EQUAL(0, pthread_create(&threads[i], NULL, fetch, &workers[i]));
    }
    for (int i = 0; i < ENDS; i++) {
      pthread_join(threads[i], NULL);
      kept += workers[i].kept;
      cache_unmap(&workers[i].cache);
    }
    for (uint64_t index = 0; index < INDICES; index++) found += cache_check(&cache, index);
    CHECK_EQUAL(kept, found);
    CHECK(cache_taken(&cache) <= cache.shape.total_bytes);
  }
  CHECK(rounds > 0);
}

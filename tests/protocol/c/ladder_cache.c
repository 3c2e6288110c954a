/* SPDX-License-Identifier: BSD-3-Clause */

/* A cache of samples, one process at a time: where records go, what is refused, what is forged. */

#include "cache_file.h"

enum { PAGE = 4096 };

/* The second of two that fetched the same sample uses its room again. */
TEST(record_that_comes_second_takes_no_room) {
  UNMAPPED struct cache cache = cache_new(4, 1 << 20), other = cache_again(&cache);
  CHECK(cache_fill(&cache, 0, 100));
  CHECK(cache_fill(&other, 1, 100));
  uint64_t cursor = other.cursor;
  CHECK(!cache_fill(&other, 0, 100));
  CHECK_EQUAL(cursor, other.cursor);
  CHECK(cache_check(&other, 0));
}

/* Records of many sizes, by one process or by two: the file is filled to its end and not beyond. */
TEST(pieces_end_with_the_file) {
  for (int ends = 1; ends <= 2; ends++) {
    UNMAPPED struct cache cache = cache_new(100000, 3 << 20);
    UNMAPPED struct cache other = cache_again(&cache);
    uint64_t random = random_start((uint64_t)ends), kept = 0, bytes = 0, index = 0;
    for (; index < 100000; index++) {
      uint64_t payload = random_below(&random, 1000);
      if (!cache_fill(ends == 2 && index % 2 ? &other : &cache, index, payload)) continue;
      kept++;
      bytes += payload;
    }
    for (index = 0; index < 100000; index++) kept -= cache_check(&cache, index);
    CHECK_EQUAL(0, kept);
    CHECK_EQUAL(cache.shape.total_bytes, cache_taken(&cache));
    uint64_t room = cache.shape.total_bytes - cache.shape.data_offset;
    CHECK(bytes > room * 4 / 5, "%" PRIu64 " of %" PRIu64, bytes, room);
  }
}

/* Whatever a word says, nothing outside of the pieces is read. */
TEST(forged_word_is_broken) {
  UNMAPPED struct cache cache = cache_new(4, 1 << 20);
  struct cache_record found;
  CHECK(cache_fill(&cache, 0, 100) && cache_fill(&cache, 1, 100));
  uint64_t words[] = {2,
                      64,
                      cache.shape.data_offset - CACHE_LINE,
                      cache.shape.data_offset + 1,
                      cache_taken(&cache),
                      cache.shape.total_bytes,
                      cache.shape.total_bytes - CACHE_LINE,
                      UINT64_MAX,
                      UINT64_MAX - 63,
                      cache.shape.data_offset + 4 * CACHE_LINE};
  for (size_t i = 0; i < LENGTH(words); i++) {
    cache_forge(&cache, 3, words[i]);
    CHECK_EQUAL(CACHE_BROKEN, cache_look(&cache, 3, &found));
  }
}

TEST(forged_head_is_broken) {
  UNMAPPED struct cache cache = cache_new(4, 1 << 20);
  struct cache_record found;
  CHECK(cache_fill(&cache, 1, 100));
  CHECK_EQUAL(CACHE_HIT, cache_look(&cache, 1, &found));
  struct cache_head *head = (struct cache_head *)(found.layout - sizeof *head), right = *head;
  struct cache_head wrong[] = {
      {2, 100, 11, 0},         {1, UINT64_MAX, 11, 0}, {1, 1 << 20, 11, 0},
      {1, 100, 0, 0},          {1, 100, UINT32_MAX, 0}, {1, UINT64_MAX - 4000, 11, 0},
      {1, 1, (1 << 20) - 1, 0}};
  for (size_t i = 0; i < LENGTH(wrong); i++) {
    *head = wrong[i];
    CHECK_EQUAL(CACHE_BROKEN, cache_look(&cache, 1, &found));
  }
  *head = right;
  CHECK(cache_check(&cache, 1));
}

/* A forged count of what was taken stops the growth, and moves no bound. */
TEST(forged_end_takes_nothing) {
  UNMAPPED struct cache cache = cache_new(4, 1 << 20);
  struct cache_control *control = (struct cache_control *)cache.base;
  uint64_t ends[] = {0, 1, cache.shape.data_offset - PAGE, cache.shape.data_offset + 1,
                     cache.shape.total_bytes + PAGE, UINT64_MAX};
  for (size_t i = 0; i < LENGTH(ends); i++) {
    atomic_store(&control->taken, ends[i]);
    CHECK(!cache_fill(&cache, 0, 100));
    CHECK(cache_taken(&cache) <= cache.shape.total_bytes);
  }
}

TEST(users_are_noted_once) {
  UNMAPPED struct cache cache = cache_new(1, 1 << 20);
  struct cache_control *control = (struct cache_control *)cache.base;
  for (uint64_t user = 0; user < 2 * CACHE_USERS; user++) cache_note_user(&cache, user / 2 + 1);
  for (uint64_t user = 0; user < CACHE_USERS; user++) {
    CHECK_EQUAL(user + 1, atomic_load(&control->users[user]));
  }
  cache_note_user(&cache, 1000);
  CHECK_EQUAL(1000, atomic_load(&control->users[1000 % CACHE_USERS]));
}

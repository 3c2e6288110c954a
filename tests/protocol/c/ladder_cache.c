/* SPDX-License-Identifier: BSD-3-Clause */

/* A cache of samples, one process at a time: where records go, what is refused, what is forged. */

#include "cache_file.h"

enum { PAGE = 4096 };

TEST(nothing_is_there_at_first) {
  struct cache cache = cache_new(10, 1 << 20);
  for (uint64_t index = 0; index < 10; index++) {
    CHECK(cache_is_absent(&cache, index));
    CHECK(!cache_check(&cache, index));
  }
  cache_unmap(&cache);
}

TEST(what_is_kept_is_found_by_all) {
  struct cache cache = cache_new(3, 1 << 20), other = cache_again(&cache);
  CHECK(cache_fill(&cache, 0, 0));
  CHECK(cache_fill(&other, 1, 5000));
  CHECK(cache_fill(&cache, 2, 64));
  for (uint64_t index = 0; index < 3; index++) {
    CHECK(cache_check(&cache, index) && cache_check(&other, index));
    CHECK(!cache_is_absent(&other, index));
  }
  cache_unmap(&cache);
  cache_unmap(&other);
}

/* The second of two that fetched the same sample uses its room again. */
TEST(record_that_comes_second_takes_no_room) {
  struct cache cache = cache_new(4, 1 << 20), other = cache_again(&cache);
  CHECK(cache_fill(&cache, 0, 100));
  CHECK(cache_fill(&other, 1, 100));
  uint64_t cursor = other.cursor;
  CHECK(!cache_fill(&other, 0, 100));
  CHECK_EQUAL(cursor, other.cursor);
  CHECK(cache_check(&other, 0));
  cache_unmap(&cache);
  cache_unmap(&other);
}

TEST(refused_sample_is_neither_there_nor_absent) {
  struct cache cache = cache_new(1, 1 << 20);
  cache_refuse(&cache, 0);
  CHECK(!cache_is_absent(&cache, 0) && !cache_check(&cache, 0));
  CHECK(!cache_fill(&cache, 0, 10));
  cache_unmap(&cache);
}

/* Records of many sizes, by one process or by two: the file is filled to its end and not beyond. */
TEST(pieces_end_with_the_file) {
  for (int ends = 1; ends <= 2; ends++) {
    struct cache cache = cache_new(100000, 3 << 20);
    struct cache other = cache_again(&cache);
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
    cache_unmap(&cache);
    cache_unmap(&other);
  }
}

/* A sample larger than a piece gets one of its own, and the piece in hand goes on. */
TEST(large_record_has_a_piece_of_its_own) {
  struct cache cache = cache_new(5, 64 << 20), other = cache_again(&cache);
  CHECK(cache_fill(&cache, 0, 100));
  CHECK(cache_fill(&other, 1, 100));
  uint64_t end = cache.end;
  CHECK(cache_fill(&cache, 2, 3 << 20));
  CHECK_EQUAL(end, cache.end);
  CHECK(cache_fill(&cache, 3, 100));
  CHECK_EQUAL(end, cache.end);
  for (uint64_t index = 0; index < 4; index++) CHECK(cache_check(&other, index));
  CHECK(!cache_fill(&cache, 4, 64 << 20));
  CHECK(cache_is_absent(&cache, 4));
  cache_unmap(&cache);
  cache_unmap(&other);
}

/* Pieces that lie side by side are one, so that a process alone wastes nothing between them. */
TEST(neighbouring_pieces_are_joined) {
  struct cache cache = cache_new(1000, 4 << 20);
  uint64_t record = cache_record_bytes(&(struct cache_head){0, 3000, 11, 0});
  uint64_t room = (cache.shape.total_bytes - cache.shape.data_offset) / record, kept = 0;
  for (uint64_t index = 0; index < 1000 || index < room; index++) {
    if (index < 1000) kept += cache_fill(&cache, index, 3000);
  }
  CHECK_EQUAL(room < 1000 ? room : 1000, kept);
  cache_unmap(&cache);
}

TEST(words_alone_may_be_too_many) {
  struct cache_shape shape = {.indices = 1 << 20, .max_bytes = 1 << 20, .page_bytes = PAGE};
  CHECK(!cache_measure(&shape));
  shape.indices = UINT64_MAX;
  CHECK(!cache_measure(&shape));
  shape.indices = 1, shape.max_bytes = UINT64_MAX;
  CHECK(!cache_measure(&shape));
  shape.max_bytes = PAGE - 1;
  CHECK(!cache_measure(&shape));
}

/* Whatever a word says, nothing outside of the pieces is read. */
TEST(forged_word_is_broken) {
  struct cache cache = cache_new(4, 1 << 20);
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
  cache_unmap(&cache);
}

TEST(forged_head_is_broken) {
  struct cache cache = cache_new(4, 1 << 20);
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
  cache_unmap(&cache);
}

/* A forged count of what was taken stops the growth, and moves no bound. */
TEST(forged_end_takes_nothing) {
  struct cache cache = cache_new(4, 1 << 20);
  struct cache_control *control = (struct cache_control *)cache.base;
  uint64_t ends[] = {0, 1, cache.shape.data_offset - PAGE, cache.shape.data_offset + 1,
                     cache.shape.total_bytes + PAGE, UINT64_MAX};
  for (size_t i = 0; i < LENGTH(ends); i++) {
    atomic_store(&control->taken, ends[i]);
    CHECK(!cache_fill(&cache, 0, 100));
    CHECK(cache_taken(&cache) <= cache.shape.total_bytes);
  }
  cache_unmap(&cache);
}

TEST(closed_cache_gives_its_pages_back) {
  struct cache cache = cache_new(100, 8 << 20);
  struct stat before, after;
  for (uint64_t index = 0; index < 100; index++) CHECK(cache_fill(&cache, index, 40000));
  CHECK_EQUAL(0, fstat(cache.fd, &before));
  cache_close(&cache);
  CHECK(cache_is_closed(&cache));
  CHECK_EQUAL(0, fstat(cache.fd, &after));
  CHECK(after.st_blocks < before.st_blocks / 10);
  CHECK_EQUAL(0, cache_wanted(&cache, 100));
  cache_unmap(&cache);
}

TEST(counts_of_all_are_summed) {
  struct cache cache = cache_new(1, 1 << 20), other = cache_again(&cache);
  struct cache_counts total;
  cache_count(&cache, 1, 2, 3, 4, 5);
  other.line = (cache.line + 1) % CACHE_COUNTERS;
  cache_count(&other, 10, 20, 30, 40, 50);
  cache_total(&cache, &total);
  CHECK_EQUAL(11, total.hits);
  CHECK_EQUAL(22, total.misses);
  CHECK_EQUAL(33, total.entries);
  CHECK_EQUAL(44, total.bytes);
  CHECK_EQUAL(55, total.refused);
  cache_unmap(&cache);
  cache_unmap(&other);
}

TEST(users_are_noted_once) {
  struct cache cache = cache_new(1, 1 << 20);
  struct cache_control *control = (struct cache_control *)cache.base;
  for (uint64_t user = 0; user < 2 * CACHE_USERS; user++) cache_note_user(&cache, user / 2 + 1);
  for (uint64_t user = 0; user < CACHE_USERS; user++) {
    CHECK_EQUAL(user + 1, atomic_load(&control->users[user]));
  }
  cache_note_user(&cache, 1000);
  CHECK_EQUAL(1000, atomic_load(&control->users[1000 % CACHE_USERS]));
  cache_unmap(&cache);
}

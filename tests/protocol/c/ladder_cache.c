/* SPDX-License-Identifier: BSD-3-Clause */

/* A cache of samples, one process at a time: where records go. */

#include "cache_file.h"

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

/* Records of a page each: the last one's last byte is the last byte of its piece. */
TEST(last_record_of_a_piece_is_found) {
  UNMAPPED struct cache cache = cache_new(1000, 1 << 20);
  CHECK(cache_fill(&cache, 0, CACHE_LINE));
  uint64_t cursor = cache.cursor;
  CHECK(cache_fill(&cache, 1, CACHE_LINE));
  uint64_t page = cache.shape.page_bytes, record = cache.cursor - cursor;
  /* What is left of the page, so that the next begins with one. */
  CHECK(cache_fill(&cache, 2, page - 3 * record + CACHE_LINE));
  uint64_t index = 3;
  while (cache_fill(&cache, index, page - record + CACHE_LINE)) index++;
  CHECK_EQUAL(cache.shape.total_bytes, cache.cursor);
  for (uint64_t kept = 0; kept < index; kept++) CHECK(cache_check(&cache, kept));
}

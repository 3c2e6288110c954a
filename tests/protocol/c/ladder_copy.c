/* SPDX-License-Identifier: BSD-3-Clause */

/* Copies: every byte arrives, and none lands beside its place, at all alignments and lengths. */

#include "check.h"
#include "copy.h"

#include <stdlib.h>

enum { EDGE = 128, LONGEST_SHORT = 300, CANARY = 0xc5 };

typedef void copy_function(void *to, const void *from, size_t bytes);

static void copy_small_batch(void *to, const void *from, size_t bytes) {
  copy_bytes(to, from, bytes, bytes);
}

static void copy_large_batch(void *to, const void *from, size_t bytes) {
  copy_bytes(to, from, bytes, COPY_STREAM_FROM_BYTES);
}

static copy_function *const ways[] = {copy_plain, copy_stream, copy_small_batch, copy_large_batch};

/* Memory on a cache line; the caller frees it. */
static uint8_t *lines_new(size_t bytes) {
  uint8_t *memory = aligned_alloc(CACHE_LINE, (bytes + CACHE_LINE) / CACHE_LINE * CACHE_LINE);
  CHECK(memory != NULL);
  return memory;
}

static void fill_random(uint8_t *to, size_t bytes, uint64_t stream) {
  uint64_t random = random_start(stream);
  for (size_t i = 0; i < bytes; i++) to[i] = (uint8_t)(random_next(&random) >> 32);
}

static size_t count_of(const uint8_t *from, size_t bytes, uint8_t value) {
  size_t count = 0;
  for (size_t i = 0; i < bytes; i++) count += from[i] == value;
  return count;
}

/* Copy once and look at the copy and at what lies before and behind it. */
static void check_copy(copy_function *copy, uint8_t *to, const uint8_t *from, size_t bytes) {
  memset(to - EDGE, CANARY, bytes + 2 * EDGE);
  copy(to, from, bytes);
  CHECK(memcmp(to, from, bytes) == 0, "%zu bytes", bytes);
  CHECK_EQUAL(EDGE, count_of(to - EDGE, EDGE, CANARY));
  CHECK_EQUAL(EDGE, count_of(to + bytes, EDGE, CANARY));
}

TEST(short_copies_at_every_alignment) {
  uint8_t *from = lines_new(LONGEST_SHORT + CACHE_LINE);
  uint8_t *to = lines_new(LONGEST_SHORT + CACHE_LINE + 2 * EDGE);
  fill_random(from, LONGEST_SHORT + CACHE_LINE, 1);
  for (size_t way = 0; way < LENGTH(ways); way++) {
    for (size_t shift = 0; shift < CACHE_LINE; shift++) {
      for (size_t bytes = 0; bytes <= LONGEST_SHORT; bytes++) {
        /* Coprime to 64, so that all pairs of alignments come up over the lengths. */
        check_copy(ways[way], to + EDGE + shift, from + (shift * 5 + bytes * 7) % 64, bytes);
      }
    }
  }
  free(to);
  free(from);
}

TEST(large_copies_at_random_alignments) {
  static const size_t edges[] = {COPY_STREAM_PIECE_BYTES - 1, COPY_STREAM_PIECE_BYTES,
                                 COPY_STREAM_FROM_BYTES - 1,  COPY_STREAM_FROM_BYTES,
                                 COPY_STREAM_FROM_BYTES + 1,  3000001};
  size_t most = 3000001 + CACHE_LINE;
  uint8_t *from = lines_new(most);
  uint8_t *to = lines_new(most + 2 * EDGE);
  uint64_t random = random_start(2);
  fill_random(from, most, 3);
  for (size_t i = 0; i < LENGTH(edges); i++) {
    for (size_t way = 0; way < LENGTH(ways); way++) {
      size_t to_shift = random_below(&random, CACHE_LINE);
      check_copy(ways[way], to + EDGE + to_shift, from + random_below(&random, 64), edges[i]);
    }
  }
  free(to);
  free(from);
}

/* Gather pieces that lie in random places, some of them twice. */
static void check_gather(uint8_t *to, const uint8_t *from, size_t from_bytes, size_t count,
                         size_t piece_bytes, uint64_t *random) {
  const void **pieces = calloc(count + 1, sizeof *pieces);
  CHECK(pieces != NULL);
  for (size_t i = 0; i < count; i++) {
    pieces[i] = from + random_below(random, from_bytes - piece_bytes + 1);
  }
  size_t bytes = count * piece_bytes;
  memset(to - EDGE, CANARY, bytes + 2 * EDGE);
  copy_gather(to, pieces, count, piece_bytes);
  for (size_t i = 0; i < count; i++) {
    CHECK(memcmp(to + i * piece_bytes, pieces[i], piece_bytes) == 0, "piece %zu of %zu bytes", i,
          piece_bytes);
  }
  CHECK_EQUAL(EDGE, count_of(to - EDGE, EDGE, CANARY));
  CHECK_EQUAL(EDGE, count_of(to + bytes, EDGE, CANARY));
  free(pieces);
}

TEST(gathers_of_every_piece_length) {
  enum { FROM = 4096, PIECES = 11 };
  uint8_t *from = lines_new(FROM);
  uint8_t *to = lines_new(PIECES * LONGEST_SHORT + CACHE_LINE + 2 * EDGE);
  uint64_t random = random_start(4);
  fill_random(from, FROM, 5);
  for (size_t piece_bytes = 0; piece_bytes <= LONGEST_SHORT; piece_bytes++) {
    for (size_t count = 0; count <= PIECES; count++) {
      size_t shift = random_below(&random, CACHE_LINE);
      check_gather(to + EDGE + shift, from, FROM, count, piece_bytes, &random);
    }
  }
  free(to);
  free(from);
}

/* Both ways of a large batch: pieces just below and at the length from which they are streamed. */
TEST(gathers_of_large_batches) {
  enum { FROM = 1 << 16 };
  static const size_t pieces[] = {COPY_STREAM_PIECE_BYTES - 1, COPY_STREAM_PIECE_BYTES, 5003};
  size_t most = 2 * COPY_STREAM_FROM_BYTES;
  uint8_t *from = lines_new(FROM);
  uint8_t *to = lines_new(most + CACHE_LINE + 2 * EDGE);
  uint64_t random = random_start(6);
  fill_random(from, FROM, 7);
  for (size_t i = 0; i < LENGTH(pieces); i++) {
    size_t shift = random_below(&random, CACHE_LINE);
    check_gather(to + EDGE + shift, from, FROM, most / pieces[i], pieces[i], &random);
  }
  free(to);
  free(from);
}

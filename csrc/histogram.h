/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_HISTOGRAM_H
#define SHMLOADER_HISTOGRAM_H

/*
 * How often which duration came, to within 1/32 of it, in the space of a few pages: 16 buckets for
 * each power of two. Private memory of one thread.
 */

#include "platform.h"

#define HISTOGRAM_PART 4u /* bits: buckets of each power of two */
#define HISTOGRAM_BUCKETS (40u << HISTOGRAM_PART) /* up to 2^43 ns, more than two hours */

struct histogram {
  uint64_t sum_ns;
  uint64_t longest_ns;
  uint64_t buckets[HISTOGRAM_BUCKETS];
};

static inline uint32_t histogram_bucket(uint64_t ns) {
  uint32_t power = 0;
  while (ns >> power >= 2u << HISTOGRAM_PART) power++;
  uint32_t bucket = (power << HISTOGRAM_PART) + (uint32_t)(ns >> power);
  return bucket < HISTOGRAM_BUCKETS ? bucket : HISTOGRAM_BUCKETS - 1;
}

/* The middle of a bucket, in nanoseconds. */
static inline uint64_t histogram_middle(uint32_t bucket) {
  uint32_t power = bucket >> HISTOGRAM_PART;
  if (power < 2) return bucket;
  power--;
  uint64_t start = (uint64_t)(bucket - (power << HISTOGRAM_PART)) << power;
  return start + (UINT64_C(1) << power) / 2;
}

static inline void histogram_add(struct histogram *histogram, uint64_t ns) {
  histogram->sum_ns += ns;
  if (ns > histogram->longest_ns) histogram->longest_ns = ns;
  histogram->buckets[histogram_bucket(ns)]++;
}

#endif

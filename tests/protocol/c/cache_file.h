/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_TESTS_CACHE_FILE_H
#define SHMLOADER_TESTS_CACHE_FILE_H

/* A cache in a file of its own, and records that say whose they are. */

#include "cache.h"
#include "check.h"

/* Make a cache, as its maker has it. UNMAPPED: at the end of its block. */
struct cache cache_new(uint64_t indices, uint64_t max_bytes);
#define UNMAPPED __attribute__((cleanup(cache_unmap)))

/* The same file mapped once more, as another process has it. */
struct cache cache_again(const struct cache *cache);

/* Keep a record of payload_bytes, all equal to a byte that its index tells. True: it is shown. */
bool cache_fill(struct cache *cache, uint64_t index, uint64_t payload_bytes);

/* Look for an index, and check each byte of what is found. True: it is there. */
bool cache_check(const struct cache *cache, uint64_t index);

#endif

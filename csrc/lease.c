/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Blocks: ordinary private memory behind a lease. A batch that is spilled lives in one block, laid
 * out as it was in its slot, so the same code makes its tensors. The lease stands in the first
 * cache line of the allocation, and the last alias frees the whole.
 */

#include "lease.h"

#include <stdlib.h>

static void block_end(struct lease *lease) { free(lease); }

struct lease *lease_count_new(void) { return lease_block_new(0); }

struct lease *lease_block_new(uint64_t bytes) {
  if (bytes > SIZE_MAX - 2 * CACHE_LINE) return NULL;
  size_t lines = (size_t)(bytes + CACHE_LINE - 1) / CACHE_LINE;
  struct lease *lease = aligned_alloc(CACHE_LINE, (lines + 1) * CACHE_LINE);
  if (lease == NULL) return NULL;
  lease->owner = NULL;
  lease->slot = 0;
  lease->end = block_end;
  lease_begin(lease, 1);
  return lease;
}

void *lease_block_start(struct lease *lease) { return (uint8_t *)lease + CACHE_LINE; }

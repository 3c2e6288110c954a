/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_LEASE_H
#define SHMLOADER_LEASE_H

#include "platform.h"

/*
 * A lease counts the aliases of one piece of memory: one for each storage that points into it.
 * When the last alias dies, end() runs, once, on the thread that dropped it. The memory is a slot
 * of the trainer, a part of a batch that left its slot, or a slot that a worker is writing; the
 * three differ in end() alone. Nothing here knows Python, so a lease may end on any thread and at
 * interpreter shutdown.
 */
struct lease {
  _Atomic uint32_t aliases;
  uint32_t slot;
  void *owner;
  void (*end)(struct lease *lease);
};

/* Start counting with a number of aliases, at least 1. No other thread may use the lease yet. */
static inline void lease_begin(struct lease *lease, uint32_t aliases) {
  /* relaxed: the memory is handed to others only afterwards. */
  atomic_store_explicit(&lease->aliases, aliases, memory_order_relaxed);
}

/* One alias more. Only by a holder of one; any thread, wait-free. */
static inline void lease_take(struct lease *lease) {
  /* relaxed: the caller's own alias keeps the count above zero. */
  atomic_fetch_add_explicit(&lease->aliases, 1, memory_order_relaxed);
}

/* One alias less. Any thread; lock-free. The lease may be gone on return. */
static inline void lease_drop(struct lease *lease) {
  /* sync alias-R -> alias-A: this alias's last use of the memory comes before its end. */
  if (atomic_fetch_sub_explicit(&lease->aliases, 1, memory_order_release) != 1) return;
  /* sync alias-A <- alias-R: every other alias's last use is over. */
  (void)atomic_load_explicit(&lease->aliases, memory_order_acquire);
  lease->end(lease);
}

/* Aliases now. Exact only for the holder of the last one. */
static inline uint32_t lease_aliases(struct lease *lease) {
  /* sync alias-A <- alias-R: a count of 1 means that all other aliases are done. */
  return atomic_load_explicit(&lease->aliases, memory_order_acquire);
}

/*
 * Private memory of bytes behind its own lease with one alias; called as extent_enter is. With no
 * bytes it only counts, as a worker does the aliases of a slot. NULL: no memory.
 */
struct lease *lease_block_new(uint64_t bytes);

/* The start of a block's memory, on a cache line. */
void *lease_block_start(struct lease *lease);

/*
 * A file that is not written to any more, mapped into this process: a list of records. Writes
 * through the mapping are this process's own. The lease comes first: its last alias unmaps.
 */
struct mapped {
  struct lease lease;
  uint8_t *base;
  uint64_t bytes;
  bool is_writable; /* false: a limit of the process or the machine allows reading alone */
};

/*
 * Map a file of bytes, at least 1, behind a lease with one alias. 0 or -errno. One thread at a
 * time; makes system calls, and never waits for a peer.
 */
int lease_map_file(int fd, uint64_t bytes, struct mapped **made);

#endif

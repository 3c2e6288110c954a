/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_DOORBELL_H
#define SHMLOADER_DOORBELL_H

#include "platform.h"

/* An event count: one owner parks on it, any process rings it. The proof is in doorbell.c. */
struct doorbell {
  /* Added to by every process that rings, compared by the owner: rings so far, modulo 2^32. */
  alignas(CACHE_LINE) _Atomic uint32_t rings;
  /* Written by the owner: 1 while it may be parked; only then a ring costs a system call. */
  _Atomic uint32_t parked;
};

/* Announce news. Any process, any thread, wait-free; call it after publishing. */
void doorbell_ring(struct doorbell *bell);

/* How many rings there were, as far as is known: a hint, which orders nothing. Any process. */
static inline uint32_t doorbell_count(const struct doorbell *bell) {
  /* relaxed: whoever acts on it looks for news, or arms, which order what they read. */
  return atomic_load_explicit(&bell->rings, memory_order_relaxed);
}

/*
 * Announce that the owner is about to park. Only the owner; wait-free.
 * Returns the count to park on; the caller looks for news once more before it parks.
 */
uint32_t doorbell_arm(struct doorbell *bell);

/*
 * Park until the count differs from armed. Only the owner; may park for timeout_ns.
 * 0: look for news; -ETIMEDOUT; -EINTR: a signal arrived and its handler is yet to run.
 */
int doorbell_park(struct doorbell *bell, uint32_t armed, int64_t timeout_ns);

/* Take the announcement back. Only the owner; wait-free. */
void doorbell_disarm(struct doorbell *bell);

#endif

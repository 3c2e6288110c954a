/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_CLOCK_H
#define SHMLOADER_CLOCK_H

/*
 * How a worker spent its time, in nanoseconds, for stats alone: nothing is decided by it. Each of
 * the three sums has one writer, the worker; the trainer reads them one by one, for stats().
 */

#include "platform.h"

/* Written by the worker, read by the trainer. */
struct worker_clock {
  alignas(CACHE_LINE) _Atomic uint64_t busy_ns;
  _Atomic uint64_t starved_ns;
  _Atomic uint64_t blocked_ns;
};

/* Add to one sum. */
static inline void clock_count(_Atomic uint64_t *sum, uint64_t ns) {
  /* relaxed: only this worker writes its clock, and nothing is read because of it. */
  uint64_t now = atomic_load_explicit(sum, memory_order_relaxed);
  /* relaxed: as above. */
  atomic_store_explicit(sum, now + ns, memory_order_relaxed);
}

/* Worker only; wait-free. */
static inline void clock_add(struct worker_clock *clock, uint64_t busy_ns, uint64_t starved_ns,
                             uint64_t blocked_ns) {
  clock_count(&clock->busy_ns, busy_ns);
  STEP("clock: busy_ns");
  clock_count(&clock->starved_ns, starved_ns);
  STEP("clock: starved_ns");
  clock_count(&clock->blocked_ns, blocked_ns);
  STEP("clock: blocked_ns");
}

static inline uint64_t clock_busy_ns(struct worker_clock *clock) {
  /* relaxed: a number for people. */
  return atomic_load_explicit(&clock->busy_ns, memory_order_relaxed);
}

static inline uint64_t clock_starved_ns(struct worker_clock *clock) {
  /* relaxed: a number for people. */
  return atomic_load_explicit(&clock->starved_ns, memory_order_relaxed);
}

static inline uint64_t clock_blocked_ns(struct worker_clock *clock) {
  /* relaxed: a number for people. */
  return atomic_load_explicit(&clock->blocked_ns, memory_order_relaxed);
}

#endif

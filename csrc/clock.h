/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_CLOCK_H
#define SHMLOADER_CLOCK_H

/*
 * How a worker spent its time since the segment was made, in nanoseconds, and what it made in it:
 * for stats alone, nothing is decided by it. Each sum has one writer, the worker, and goes on where
 * a worker that died has left it; the trainer and viewers read them one by one.
 */

#include "platform.h"

/* Written by the worker. */
struct worker_clock {
  alignas(CACHE_LINE) _Atomic uint64_t fetching_ns;
  _Atomic uint64_t collating_ns; /* into the slot, and writing what is left of the batch there */
  _Atomic uint64_t starved_ns;   /* parked without an order */
  _Atomic uint64_t blocked_ns;   /* waiting for pages in the middle of a batch */
  _Atomic uint64_t batches;
  _Atomic uint64_t bytes; /* of their payload */
  _Atomic uint64_t left_out; /* samples that their dataset left out of them */
  _Atomic uint64_t looks_found; /* looks before parking that found a ring, */
  _Atomic uint64_t looks_vain;  /* and those that did not */
};

/* Add to one sum. Worker only; wait-free. */
static inline void clock_count(_Atomic uint64_t *sum, uint64_t more) {
  /* relaxed: only this worker writes its clock, and nothing is read because of it. */
  uint64_t now = atomic_load_explicit(sum, memory_order_relaxed);
  /* relaxed: as above. */
  atomic_store_explicit(sum, now + more, memory_order_relaxed);
}

/* Time without an order, and looks in it. Worker only; wait-free. */
static inline void clock_add_starved(struct worker_clock *clock, uint64_t ns, uint64_t found,
                                     uint64_t vain) {
  clock_count(&clock->starved_ns, ns);
  STEP("clock: starved_ns");
  clock_count(&clock->looks_found, found);
  STEP("clock: looks_found");
  clock_count(&clock->looks_vain, vain);
  STEP("clock: looks_vain");
}

/* A request was answered. Worker only; wait-free. */
static inline void clock_add_batch(struct worker_clock *clock, uint64_t fetching_ns,
                                   uint64_t collating_ns, uint64_t blocked_ns, uint64_t bytes,
                                   uint64_t left_out) {
  clock_count(&clock->fetching_ns, fetching_ns);
  STEP("clock: fetching_ns");
  clock_count(&clock->collating_ns, collating_ns);
  STEP("clock: collating_ns");
  clock_count(&clock->blocked_ns, blocked_ns);
  STEP("clock: blocked_ns");
  clock_count(&clock->batches, 1);
  STEP("clock: batches");
  clock_count(&clock->bytes, bytes);
  STEP("clock: bytes");
  clock_count(&clock->left_out, left_out);
  STEP("clock: left_out");
}

#endif

/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The doorbell is an event count over one parked word.
 *
 * The owner:   arm (parked = 1, armed = rings); look for news; park while rings == armed; disarm.
 * The ringer:  publish the news; rings += 1; if parked, wake.
 *
 * Key invariant: no news is missed. Take any ring and any arm. All four operations on rings and
 * parked are sequentially consistent, so they stand in one order for all processes:
 *   - the ring's addition before the arm's load of rings: the load reads a value that carries the
 *     news, so the look between arm and park finds it;
 *   - the addition after that load: rings differs from armed, so parking returns at once, or the
 *     owner is parked already, and then its store to parked came before the addition, the ringer
 *     reads parked == 1 and wakes it.
 * Both sides store to one word and then load the other (the store-load case), which is the one
 * thing that acquire and release cannot order: hence seq_cst here and nowhere else.
 *
 * One writer: parked is the owner's. rings has many writers, the workers in the trainer's doorbell,
 * the trainer and the worker's own threads in a worker's, and each write is a single atomic
 * addition, which no death can tear.
 */

#include "doorbell.h"

void doorbell_ring(struct doorbell *bell) {
  /* sync rung-R -> rung-A: seq_cst, the store half of store-load with parked. */
  atomic_fetch_add_explicit(&bell->rings, 1, memory_order_seq_cst);
  STEP("ring: rings");
  /* sync parked-A <- parked-R: seq_cst, the load half; reads 1 if the owner armed before. */
  if (atomic_load_explicit(&bell->parked, memory_order_seq_cst)) platform_unpark(&bell->rings);
  STEP("ring: woken");
}

uint32_t doorbell_arm(struct doorbell *bell) {
  /* sync parked-R -> parked-A: seq_cst, the store half of store-load with rings. */
  atomic_store_explicit(&bell->parked, 1, memory_order_seq_cst);
  STEP("arm: parked");
  /* sync rung-A <- rung-R: seq_cst, the load half; news rung before is visible from here. */
  return atomic_load_explicit(&bell->rings, memory_order_seq_cst);
}

int doorbell_park(struct doorbell *bell, uint32_t armed, int64_t timeout_ns) {
  STEP("park: begun");
  return platform_park(&bell->rings, armed, timeout_ns);
}

void doorbell_disarm(struct doorbell *bell) {
  /* relaxed: a ringer that still reads 1 makes one needless call. */
  atomic_store_explicit(&bell->parked, 0, memory_order_relaxed);
  STEP("disarm: parked");
}

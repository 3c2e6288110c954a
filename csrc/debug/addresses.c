/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Keeps the addresses of a guarded segment that was given up, with no memory behind them. As long
 * as they are reserved, native code faults when it uses a pointer into a batch of a loader that is
 * gone, and the guard, which is kept with them, still knows which batch it was. Otherwise the next
 * segment would probably be mapped at the same place, and the pointer would hit another batch.
 *
 * Of each range only the part that was ever open is kept, so this costs no more addresses than the
 * batches had. The last ENDED_MAX segments are kept. Each end draws a turn, which says which of
 * them makes room, so any number of threads may end segments at a time, without a lock.
 */

#include "guard.h"

#include <stdlib.h>


enum { ENDED_MAX = 8 };

static _Atomic(struct guard *) ended[ENDED_MAX];
static _Atomic uint32_t ended_count;

/* Keep only the addresses that this process ever used, and no memory behind them. */
static bool reserve_used(const struct guard *guard) {
  const struct geometry *geometry = &guard->geometry;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  if (mmap(guard->base, geometry->total_bytes, PROT_NONE, flags, -1, 0) == MAP_FAILED) return false;
  munmap(guard->base, geometry->slots_offset);
  for (uint32_t slot = 0; slot < geometry->ranges; slot++) {
    uint64_t peak = guard_peek(&guard->slots[slot].peak_bytes);
    if (peak < geometry->range_bytes) {
      munmap(guard_range(guard, slot) + peak, geometry->range_bytes - peak);
    }
  }
  return true;
}

static void give_back(struct guard *guard) {
  guard_forget(guard);
  for (uint32_t slot = 0; slot < guard->geometry.ranges; slot++) {
    uint64_t peak = guard_peek(&guard->slots[slot].peak_bytes);
    if (peak > 0) munmap(guard_range(guard, slot), peak);
  }
  free(guard);
}

void guard_keep_addresses(struct guard *guard) {
  guard_note(&guard->ended, true);
  if (!reserve_used(guard)) {
    guard_forget(guard);
    munmap(guard->base, guard->geometry.total_bytes);
    free(guard);
    return;
  }
  /* relaxed: a turn; each end takes another one. */
  uint32_t turn = atomic_fetch_add_explicit(&ended_count, 1, memory_order_relaxed);
  /* sync ended-R -> ended-A: the thread that takes this one out finds it whole;
   * sync ended-A <- ended-R: and so is the one that is taken out here. */
  struct guard *oldest =
      atomic_exchange_explicit(&ended[turn % ENDED_MAX], guard, memory_order_acq_rel);
  if (oldest != NULL) give_back(oldest);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_PINNED_H
#define SHMLOADER_PINNED_H

#include "ledger.h"

/*
 * Slots that devices read where they lie: page-locked, and fenced when their batch was dropped.
 * pinned.c opens with the key invariants. All of it is the trainer's, and on the threads alone on
 * which its user calls next(), iter() or close(): never in a destructor.
 *
 * What returns an int returns as driver.h says; -EPERM: this process is a copy of the trainer.
 */

/* What locking a slot needs besides the ledger: computed, locked and noted apart. */
struct pinned_range {
  uint8_t *start;
  uint64_t bytes;     /* whole pages, all of which exist; 0: so many are locked already */
  bool is_locked;     /* fewer of them: that has to be undone first */
};

/* Page-locked by this process, in bytes, over all of its ledgers. Any thread. */
uint64_t pinned_total_bytes(void);

/* Begin to lock the first bytes of a READY slot. 0 or -errno: then nothing is to be locked. */
int pinned_begin(struct ledger *ledger, uint32_t slot, uint64_t bytes, struct pinned_range *range);

/* Lock it, in some ms; the ledger is not used, so that its caller may let others go on. */
int pinned_lock(struct pinned_range *range);

/* Note what came of it. */
void pinned_end(struct ledger *ledger, uint32_t slot, const struct pinned_range *range, int error);

/* How much of a slot is locked, in bytes from its start. */
static inline uint64_t pinned_bytes(struct ledger *ledger, uint32_t slot) {
  /* relaxed: only the trainer, which is here, changes it. */
  return atomic_load_explicit(&ledger->entries[slot].locked_bytes, memory_order_relaxed);
}

/*
 * Free the slots whose copies are done, and record a fence behind those that were released since.
 * Slots that are out of use are unlocked.
 * Returns the error of a fence that failed: its slots are never used again. 0: there was none.
 */
int pinned_look(struct ledger *ledger);

/* True if slots are FENCED whose fence may end. */
static inline bool pinned_waits(const struct ledger *ledger) {
  bool may_record = !driver_met_capture() && !driver_is_capturing();
  return ledger->fences.count > 0 || (ledger->fences.uncovered > 0 && may_record);
}

/* Which slots are unlocked: those out of use; FREE ones too; all that nobody reads. */
enum pinned_unlocked { PINNED_UNUSED, PINNED_FREE, PINNED_LEFT };

/*
 * Undo the locks of such slots, so that their pages may be given back. Returns the number of slots
 * that are locked still.
 */
uint32_t pinned_unlock(struct ledger *ledger, enum pinned_unlocked which);

/* In a forked child: the locks are its parent's, and hold nothing here. */
void pinned_forget(struct ledger *ledger);

#endif

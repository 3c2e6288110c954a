/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_GUARD_H
#define SHMLOADER_GUARD_H

#include "ledger.h"

/*
 * Watches when a slot is used, to find faults in native code. A ledger without a guard (guard ==
 * NULL) pays a test of that pointer at each move: all of this needs one. guard.c opens with what it
 * does.
 */

/*
 * What a guard knows of one slot. The handler of faults, on any thread, reads what it finds of it;
 * all others have got the slot from the thread that wrote it. So guard_peek and guard_note do.
 */
struct guard_slot {
  /* Written by the trainer when the slot is leased: ticket and length of that batch. */
  _Atomic uint64_t ticket;
  _Atomic uint64_t batch_bytes;
  /* Written by the thread that drops the last alias: when; by the trainer: GUARD_LEASED. */
  _Atomic uint64_t released_ns;
  /* How much of the range this process may use: raised by the trainer, 0 after the last alias. */
  _Atomic uint64_t open_bytes;
  /* Written by the trainer when an answer comes, for the looks at it while it is here. */
  uint64_t tail_sum;
  bool is_listed; /* for audit.c: it was met among the free ones */
};

/* In place of the time of a release: no batch was there so far, or one is. */
enum { GUARD_UNUSED = 0, GUARD_LEASED = 1 };

#define GUARD_POISON_BLOCK (1 << 16)

static inline uint64_t guard_peek(const _Atomic uint64_t *word) {
  /* relaxed: as above. */
  return atomic_load_explicit(word, memory_order_relaxed);
}

static inline void guard_note(_Atomic uint64_t *word, uint64_t value) {
  /* relaxed: as above. */
  atomic_store_explicit(word, value, memory_order_relaxed);
}

struct guard {
  uint8_t *base;
  struct geometry geometry;
  uint8_t poison[GUARD_POISON_BLOCK]; /* what free slots are filled with, a block of it */
  struct guard_slot slots[];          /* geometry.ranges many */
};

/* The start of a slot's range. */
static inline uint8_t *guard_range(const struct guard *guard, uint32_t slot) {
  return guard->base + segment_slot_offset(&guard->geometry, slot);
}

/* Begin to guard a ledger just made. Trainer only. 0 or -errno: it is not guarded then. */
int guard_start(struct ledger *ledger);

/* Put the slot that has been FREE for longest on top of the stack, to be placed. Trainer only. */
PLATFORM_COLD void guard_place(struct ledger *ledger);

/* Let this process use the first bytes of a slot; the batch of a READY slot. Trainer only. */
PLATFORM_COLD void guard_open(struct ledger *ledger, uint32_t slot, uint64_t bytes);
PLATFORM_COLD void guard_open_batch(struct ledger *ledger, uint32_t slot);

/* Let nothing in this process use the slot any more. Trainer only. */
PLATFORM_COLD void guard_close(struct ledger *ledger, uint32_t slot);

/* The slot's batch is about to be handed out. Trainer only. */
PLATFORM_COLD void guard_lease(struct ledger *ledger, uint32_t slot);

/* The last alias is gone: this process must not use the slot. Any thread; no locks. */
PLATFORM_COLD void guard_release(struct ledger *ledger, uint32_t slot);

/* The slot is about to leave its state for FREE, FORKED or RETIRED. Trainer only. */
PLATFORM_COLD void guard_free(struct ledger *ledger, uint32_t slot);

/* Returns what is wrong after the batch of an answer just copied out, or NULL. Trainer only. */
PLATFORM_COLD const char *guard_fault(struct ledger *ledger, uint32_t slot);

/* End the process if a guarded ledger contradicts itself. Trainer only. In audit.c. */
PLATFORM_COLD void guard_audit(const struct ledger *ledger);

/*
 * From now on, explain each fault in this guard's segment: which slot was used at the wrong time.
 * One thread at a time. With hundreds of segments the last ones are not watched. In fault.c.
 */
void guard_watch(struct guard *guard);

/* The segment is about to be unmapped. Any thread, wait-free. In fault.c. */
PLATFORM_COLD void guard_end(struct guard *guard);

#endif

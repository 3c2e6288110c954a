/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_GUARD_H
#define SHMLOADER_GUARD_H

#include "ledger.h"

/*
 * Watches when a slot is used, to find faults in native code. A ledger without a
 * guard (guard == NULL) pays a test of that pointer at each move. guard.c opens with what it does.
 */

/* What a guard knows of one slot, for the handler of faults, which may run on any thread. */
struct guard_slot {
  /* Written by the trainer when the slot is leased: ticket and length of that batch. */
  _Atomic uint64_t ticket;
  _Atomic uint64_t batch_bytes;
  /* Written by the thread that drops the last alias: when; 0 while leased, -1 before the first. */
  _Atomic int64_t released_ns;
  /* How much of the range this process may use: raised by the trainer, 0 after the last alias. */
  _Atomic uint64_t open_bytes;
  /* Written by the trainer: the most that open_bytes ever was. */
  _Atomic uint64_t peak_bytes;
  /* Written by the trainer when an answer comes, for the looks at it while it is here. */
  uint64_t tail_sum;
};

struct guard {
  uint8_t *base;
  struct geometry geometry;
  struct guard_slot *slots;
  uint8_t *poison; /* what free slots are filled with, one block */
  uint8_t *listed; /* for audit.c: which slots it met among the free ones */
  /* Written by the trainer: ranges are no longer closed, since the kernel refused it. */
  _Atomic bool gave_up;
  /* Written by the thread that gives up the last reference: all that is left are the addresses. */
  _Atomic bool ended;
};

/* The start of a slot's range. */
static inline uint8_t *guard_range(const struct guard *guard, uint32_t slot) {
  return guard->base + segment_slot_offset(&guard->geometry, slot);
}

/* The moves that a guard looks at. */
enum move {
  MOVE_PLACE,
  MOVE_RECEIVE,
  MOVE_WANT,
  MOVE_GRANT,
  MOVE_LEASE,
  MOVE_FREE,
};

/* Begin to guard a ledger just made. Trainer only. 0 or -errno: it is not guarded then. */
int guard_start(struct ledger *ledger);

/* Free a guard's own memory; the handler of faults must not know it any more. Any thread. */
void guard_delete(struct guard *guard);

/* What the functions below do when there is a guard. */
PLATFORM_COLD void guard_prepare(struct ledger *ledger, enum move move, uint32_t slot);
PLATFORM_COLD void guard_review(const struct ledger *ledger, enum move move, uint32_t slot);
PLATFORM_COLD void guard_open_bytes(struct ledger *ledger, uint32_t slot, uint64_t bytes);
PLATFORM_COLD void guard_open_answer(struct ledger *ledger, uint32_t slot);
PLATFORM_COLD void guard_close_slot(struct ledger *ledger, uint32_t slot);
PLATFORM_COLD void guard_end_lease(struct ledger *ledger, uint32_t slot);
PLATFORM_COLD const char *guard_look(struct ledger *ledger, uint32_t slot);

/*
 * A move of a slot is about to begin: the ledger is recounted and the slot made ready for the move.
 * Before MOVE_PLACE that is the slot freed first, which comes on top of the stack. Trainer only.
 */
static inline void guard_before(struct ledger *ledger, enum move move, uint32_t slot) {
  if (ledger->guard != NULL) guard_prepare(ledger, move, slot);
}

/* The move is done: the ledger is recounted. Trainer only. */
static inline void guard_after(const struct ledger *ledger, enum move move, uint32_t slot) {
  if (ledger->guard != NULL) guard_review(ledger, move, slot);
}

/* Let this process use the first bytes of a slot. Trainer only. */
static inline void guard_open(struct ledger *ledger, uint32_t slot, uint64_t bytes) {
  if (ledger->guard != NULL) guard_open_bytes(ledger, slot, bytes);
}

/* Let this process use the batch of a READY slot. Trainer only. */
static inline void guard_open_batch(struct ledger *ledger, uint32_t slot) {
  if (ledger->guard != NULL) guard_open_answer(ledger, slot);
}

/* Let nothing in this process use the slot any more. Trainer only. */
static inline void guard_close(struct ledger *ledger, uint32_t slot) {
  if (ledger->guard != NULL) guard_close_slot(ledger, slot);
}

/* The last alias is gone: this process must not use the slot. Any thread; no locks. */
static inline void guard_release(struct ledger *ledger, uint32_t slot) {
  if (ledger->guard != NULL) guard_end_lease(ledger, slot);
}

/* Returns what is wrong after the batch of an answer just copied out, or NULL. Trainer only. */
static inline const char *guard_fault(struct ledger *ledger, uint32_t slot) {
  return ledger->guard != NULL ? guard_look(ledger, slot) : NULL;
}

/* What an order's mode says of the guard. */
static inline uint32_t guard_mode(const struct ledger *ledger) {
  return ledger->guard != NULL ? ORDER_GUARDED : 0;
}

#endif

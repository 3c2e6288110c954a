/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_GUARD_H
#define SHMLOADER_GUARD_H

#include "ledger.h"

/*
 * Watches who uses a slot when, for people who look for a fault in native code. A ledger without a
 * guard (guard == NULL) pays a test of that pointer at each move. guard.c opens with what it does.
 */

/* What a guard knows of one slot, for the handler of faults, which may run on any thread. */
struct guard_slot {
  /* Written by the trainer when the slot is leased: ticket and length of that batch. */
  _Atomic uint64_t ticket;
  _Atomic uint64_t batch_bytes;
  /* Written by whoever drops the last alias: when that was; 0 while leased, -1 before the first. */
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
  pid_t owner; /* a forked child of it watches its own mapping and nothing that it shares */
  struct guard_slot *slots;
  uint8_t *poison; /* what free slots are filled with, one block */
  uint8_t *listed; /* audit.c: which slots it met among the free ones */
  /* Written by the trainer: ranges are no longer closed, since the kernel refused it. */
  _Atomic bool gave_up;
  /* Written by whoever gives up the last reference: all that is left are the addresses. */
  _Atomic bool ended;
};

/* Where a slot's range starts. */
static inline uint8_t *guard_range(const struct guard *guard, uint32_t slot) {
  return guard->base + segment_slot_offset(&guard->geometry, slot);
}

/* Begin to guard a ledger just made. Trainer only. 0 or -errno: it is not guarded then. */
int ledger_guard(struct ledger *ledger);

/* Put the slot that has been FREE for longest on top of the stack. Trainer only. */
PLATFORM_COLD void guard_choose(struct ledger *ledger);

/* Write a request into a slot. Trainer only. */
PLATFORM_COLD void guard_write(struct ledger *ledger, uint32_t slot, const void *request,
                               uint64_t bytes);

/* What is wrong behind the batch of an answer just copied out; NULL: nothing. Trainer only. */
PLATFORM_COLD const char *guard_fault(struct ledger *ledger, uint32_t slot);

/* Let this process use the batch of a READY slot. Trainer only. */
PLATFORM_COLD void guard_open(struct ledger *ledger, uint32_t slot);

/* The slot's batch is about to be handed out. Trainer only. */
PLATFORM_COLD void guard_leased(struct ledger *ledger, uint32_t slot);

/* The last alias is gone: this process has no business in the slot. Any thread; no locks. */
PLATFORM_COLD void guard_released(struct ledger *ledger, uint32_t slot);

/* The slot is about to leave its state for FREE, FORKED or RETIRED. Trainer only. */
PLATFORM_COLD void guard_freed(struct ledger *ledger, uint32_t slot);

/* Free a guard's own memory; the handler of faults must not know it any more. Any thread. */
void guard_delete(struct guard *guard);

/* In place of unmapping the segment: give up its memory, not its addresses. Any thread. */
PLATFORM_COLD void guard_unmap(struct ledger *ledger);

/* End the process if the ledger contradicts itself, at a move such as "after placing". */
PLATFORM_COLD void guard_audit(const struct ledger *ledger, const char *move, uint32_t slot);

#endif

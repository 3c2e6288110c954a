/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Slots that devices read where they lie.
 *
 * Key invariants. A slot that was leased for devices is written again only when an event is done
 * that was recorded after its last alias was gone, over all streams of all devices in use: so the
 * stack of released slots is taken first, and the event recorded then. And a page that is locked
 * exists and is mapped until it is unlocked: the driver knows it by its address, and a device would
 * go on reading it when the file has another one.
 *
 * One fence covers all slots that were released before it, on whatever thread, and only the oldest
 * is asked. There are never more of them than slots, because each covers one at least.
 *
 * A fence that fails says nothing about the copies before it. Its slots stay FENCED, with their
 * pages, and all others go on. A context that is gone has ended what it did.
 *
 * A forked child has a copy of all this and does nothing with it: CUDA works in the parent alone.
 */

#include "pinned.h"

#include <stdlib.h>

#include "budget.h"

static _Atomic uint64_t total_bytes;

uint64_t pinned_total_bytes(void) {
  /* relaxed: a number, of one moment. */
  return atomic_load_explicit(&total_bytes, memory_order_relaxed);
}

/* Locked slots hold one reference to the segment: it is unmapped only when none is locked. */
static void count_locked(struct ledger *ledger, bool was_locked, bool is_locked) {
  uint32_t before = ledger->fences.locked_slots;
  ledger->fences.locked_slots += (uint32_t)is_locked - (uint32_t)was_locked;
  /* relaxed: the caller holds a reference, so the count cannot be zero. */
  if (before == 0 && is_locked) {
    atomic_fetch_add_explicit(&ledger->references, 1, memory_order_relaxed);
  }
  if (before == 1 && was_locked && !is_locked) ledger_unref(ledger);
}

static void set_locked(struct ledger *ledger, uint32_t slot, uint64_t bytes) {
  struct ledger_entry *entry = &ledger->entries[slot];
  uint64_t before = pinned_bytes(ledger, slot);
  /* relaxed: no alias of the slot is alive, so no thread ends its lease meanwhile. */
  atomic_store_explicit(&entry->locked_bytes, bytes, memory_order_relaxed);
  /* relaxed: as above. */
  atomic_fetch_add_explicit(&total_bytes, bytes - before, memory_order_relaxed);
  count_locked(ledger, before > 0, bytes > 0);
}

int pinned_begin(struct ledger *ledger, uint32_t slot, uint64_t bytes,
                 struct pinned_range *range) {
  struct fences *fences = &ledger->fences;
  uint64_t ranges = ledger->geometry.ranges;
  uint64_t pages = min_u64(round_up(bytes, ledger->geometry.page_bytes),
                           ledger->geometry.range_bytes);
  if (ledger_is_copy(ledger)) return -EPERM;
  if (fences->ring == NULL) fences->ring = calloc(ranges, sizeof *fences->ring);
  if (fences->ring == NULL) return -ENOMEM;
  int error = budget_need(ledger, slot, pages);
  if (error != 0) return error;
  range->start = ledger->base + segment_slot_offset(&ledger->geometry, slot);
  range->is_locked = pinned_bytes(ledger, slot) > 0;
  range->bytes = pages <= pinned_bytes(ledger, slot) ? 0 : pages;
  return 0;
}

int pinned_lock(struct pinned_range *range) {
  if (range->bytes == 0) return 0;
  if (range->is_locked) {
    int error = driver_unlock(range->start);
    if (error != 0) return error;
    range->is_locked = false;
  }
  platform_populate(range->start, (size_t)range->bytes, false);
  return driver_lock(range->start, range->bytes);
}

void pinned_end(struct ledger *ledger, uint32_t slot, const struct pinned_range *range,
                int error) {
  if (range->bytes == 0 || range->is_locked) return; /* as it was before */
  set_locked(ledger, slot, error == 0 ? range->bytes : 0);
}

static int record_fence(struct ledger *ledger) {
  struct fences *fences = &ledger->fences;
  uint32_t place = (fences->first + fences->count) % ledger->geometry.ranges;
  int error = driver_record(&fences->ring[place]);
  if (error != 0) return error;
  fences->count++;
  fences->next++;
  fences->uncovered = 0;
  return 0;
}

/* Ask the oldest fence. False: it is not done, or there is none. */
static bool has_ended(struct ledger *ledger, int *error) {
  struct fences *fences = &ledger->fences;
  if (fences->count == 0) return false;
  int answer = driver_ask(&fences->ring[fences->first]);
  if (answer == DRIVER_NOT_READY) return false;
  uint64_t number = fences->next - fences->count;
  fences->first = (fences->first + 1) % ledger->geometry.ranges;
  fences->count--;
  if (answer == 0) ledger_end_fence(ledger, number);
  else *error = answer;
  return true;
}

static bool unlock_slot(struct ledger *ledger, uint32_t slot) {
  if (driver_unlock(ledger->base + segment_slot_offset(&ledger->geometry, slot)) != 0) return false;
  set_locked(ledger, slot, 0);
  return true;
}

static bool is_unlocked(uint32_t state, enum pinned_unlocked which) {
  if (state == SLOT_LEASED || state == SLOT_FENCED) return false;
  if (state == SLOT_SPARE || state == SLOT_RETIRED || state == SLOT_FORKED) return true;
  return which == PINNED_LEFT || (which == PINNED_FREE && state == SLOT_FREE);
}

void pinned_forget(struct ledger *ledger) {
  if (ledger->fences.locked_slots == 0) return;
  ledger->fences.locked_slots = 0;
  ledger_unref(ledger);
}

uint32_t pinned_unlock(struct ledger *ledger, enum pinned_unlocked which) {
  if (ledger->fences.locked_slots == 0 || ledger_is_copy(ledger)) return 0;
  for (uint32_t slot = 0; slot < ledger->geometry.ranges; slot++) {
    uint32_t state = ledger->entries[slot].state;
    if (pinned_bytes(ledger, slot) == 0) continue;
    if (!is_unlocked(state, which) || !unlock_slot(ledger, slot)) continue;
    if (state == SLOT_SPARE) budget_retake(ledger, slot, 0);
  }
  return ledger->fences.locked_slots;
}

int pinned_look(struct ledger *ledger) {
  int error = 0;
  if (ledger->fences.ring == NULL || ledger_is_copy(ledger)) return 0;
  ledger_collect(ledger);
  if (ledger->fences.uncovered > 0 && !driver_met_capture()) error = record_fence(ledger);
  while (has_ended(ledger, &error)) continue;
  (void)pinned_unlock(ledger, PINNED_UNUSED);
  return error == -EBUSY ? 0 : error;
}

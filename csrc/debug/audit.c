/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Recounts a ledger and compares it with its own sums before each move. An error is the fault of an
 * earlier move, or of native code that writes into memory of others. Either way the ledger can no
 * longer be trusted, so the process ends here, with a line that says which sum it is. The stack
 * says which move was about to begin.
 *
 * Only the trainer's thread changes what is compared. The references and the stack of released
 * slots, which other threads write, are not compared.
 */

#include "guard.h"

#include "budget.h"
#include "message.h"

struct sums {
  uint32_t counts[SLOT_STATES];
  uint32_t wanting;
  uint64_t committed_bytes;
  uint64_t kept_bytes;
  uint64_t existing_bytes;
  uint64_t used_bytes;
};

static _Noreturn void end_with_slot(uint64_t slot, const char *wrong) {
  message_abort("the ledger is wrong about slot %" PRIu64 ", %s", slot, wrong);
}

static void expect(const char *name, uint64_t recounted, uint64_t stands) {
  if (recounted == stands) return;
  message_abort("the ledger is wrong: %s is %" PRIu64 " and was recounted as %" PRIu64, name,
                stands, recounted);
}

/* Returns what is wrong with a slot by itself, or NULL. */
static const char *fault_in(const struct ledger *ledger, const struct ledger_entry *entry) {
  bool is_placed = entry->state == SLOT_PLACED;
  bool is_lent = budget_waits(entry) && entry->state != SLOT_RETIRED;
  uint64_t range_bytes = ledger->geometry.range_bytes;
  if (entry->state >= SLOT_STATES) return "in no known state";
  if (entry->pages_bytes > range_bytes) return "with more pages than its range has";
  if (is_placed && entry->pages_bytes > entry->grant_bytes) return "with more pages than its grant";
  if (!is_placed && entry->want_bytes != 0) return "which wants pages unplaced";
  if (!is_lent && entry->children != 0) return "which children may read unleased";
  return NULL;
}

static void add(struct sums *sums, const struct ledger_entry *entry) {
  sums->counts[entry->state]++;
  sums->wanting += entry->want_bytes != 0;
  sums->committed_bytes += budget_commitment(entry);
  sums->kept_bytes += budget_kept(entry);
  sums->existing_bytes += entry->pages_bytes;
  sums->used_bytes += budget_used(entry);
}

/* Every free slot stands on the stack, once. */
static void expect_stack(const struct ledger *ledger) {
  struct guard_slot *slots = ledger->guard->slots;
  for (uint32_t slot = 0; slot < ledger->geometry.ranges; slot++) slots[slot].is_listed = false;
  for (uint32_t i = 0; i < ledger->free_count; i++) {
    uint32_t slot = ledger->free_slots[i];
    if (slot >= ledger->geometry.ranges) end_with_slot(slot, "which does not exist");
    if (ledger->entries[slot].state != SLOT_FREE) end_with_slot(slot, "listed as free");
    if (slots[slot].is_listed) end_with_slot(slot, "listed as free twice");
    slots[slot].is_listed = true;
  }
}

void guard_audit(const struct ledger *ledger) {
  struct sums sums = {.wanting = 0};
  for (uint32_t i = 0; i < ledger->geometry.ranges; i++) {
    const char *wrong = fault_in(ledger, &ledger->entries[i]);
    if (wrong != NULL) end_with_slot(i, wrong);
    add(&sums, &ledger->entries[i]);
  }
  expect("the number of free slots", sums.counts[SLOT_FREE], ledger->free_count);
  for (uint32_t state = 0; state < SLOT_STATES; state++) {
    expect("the count of a state", sums.counts[state], ledger->counts[state]);
  }
  expect("wanting", sums.wanting, ledger->wanting);
  expect("committed_bytes", sums.committed_bytes, ledger->committed_bytes);
  expect("kept_bytes", sums.kept_bytes, ledger->kept_bytes);
  expect("existing_bytes", sums.existing_bytes, ledger->existing_bytes);
  expect("used_bytes", sums.used_bytes, ledger->used_bytes);
  expect_stack(ledger);
}

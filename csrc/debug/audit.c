/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Recounts a ledger and compares it with its own sums, before and after each move. An error after a
 * move is the move's own fault; an error before it came from elsewhere, such as native code that
 * writes into memory of others. Either way the ledger can no longer be trusted, so the process ends
 * here, with a line that says which sum it is.
 *
 * Only the trainer's thread changes what is compared. The references and the stack of released
 * slots, which other threads write, are not compared.
 */

#include "audit.h"

#include "message.h"

struct sums {
  uint32_t counts[SLOT_STATES];
  uint32_t wanting;
  uint64_t committed_bytes;
  uint64_t kept_bytes;
  uint64_t existing_bytes;
  uint64_t used_bytes;
};

/* The place of the check, for the message about what is wrong. */
struct place {
  const char *when;
  const char *move;
  uint32_t slot;
  uint64_t ticket;
};

static _Noreturn void end_with(const struct place *place, struct message *message) {
  message_text(message, " ");
  message_text(message, place->when);
  message_text(message, " ");
  message_text(message, place->move);
  message_text(message, " slot ");
  message_number(message, place->slot);
  message_text(message, " of ticket ");
  message_number(message, place->ticket);
  message_abort(message);
}

static _Noreturn void end_with_slot(const struct place *place, uint32_t slot, const char *wrong) {
  struct message message = message_begin();
  message_text(&message, "the ledger is wrong about slot ");
  message_number(&message, slot);
  message_text(&message, ", ");
  message_text(&message, wrong);
  message_text(&message, ",");
  end_with(place, &message);
}

static void expect(const struct place *place, const char *name, uint64_t recounted,
                   uint64_t stands) {
  if (recounted == stands) return;
  struct message message = message_begin();
  message_text(&message, "the ledger is wrong: ");
  message_text(&message, name);
  message_text(&message, " is ");
  message_number(&message, stands);
  message_text(&message, " and was recounted as ");
  message_number(&message, recounted);
  end_with(place, &message);
}

static void expect_entry(const struct place *place, const struct ledger *ledger, uint32_t slot) {
  const struct ledger_entry *entry = &ledger->entries[slot];
  bool is_lent = entry->state == SLOT_LEASED || entry->state == SLOT_FENCED ||
                 entry->state == SLOT_FORKED;
  bool is_placed = entry->state == SLOT_PLACED;
  if (entry->state >= SLOT_STATES) end_with_slot(place, slot, "in no known state");
  if (entry->pages_bytes > ledger->geometry.range_bytes) {
    end_with_slot(place, slot, "with more pages than its range has");
  }
  if (is_placed && entry->pages_bytes > entry->grant_bytes) {
    end_with_slot(place, slot, "with more pages than its grant");
  }
  if (!is_placed && entry->want_bytes != 0) {
    end_with_slot(place, slot, "which wants pages unplaced");
  }
  if (!is_lent && entry->children != 0) {
    end_with_slot(place, slot, "which children may read unleased");
  }
}

static void add(struct sums *sums, const struct ledger_entry *entry) {
  bool is_placed = entry->state == SLOT_PLACED;
  bool is_kept = entry->state == SLOT_LEASED || entry->state == SLOT_FENCED ||
                 entry->state == SLOT_FORKED || entry->state == SLOT_RETIRED;
  sums->counts[entry->state]++;
  sums->wanting += entry->want_bytes != 0;
  sums->committed_bytes += is_placed ? entry->grant_bytes : entry->pages_bytes;
  sums->kept_bytes += is_kept ? entry->pages_bytes : 0;
  sums->existing_bytes += entry->pages_bytes;
  sums->used_bytes += is_kept || entry->state == SLOT_READY ? entry->used_bytes : 0;
}

/* Every free slot stands on the stack, once. */
static void expect_stack(const struct place *place, const struct ledger *ledger) {
  uint8_t *listed = ledger->guard->listed;
  memset(listed, 0, ledger->geometry.ranges);
  for (uint32_t i = 0; i < ledger->free_count; i++) {
    uint32_t slot = ledger->free_slots[i];
    if (slot >= ledger->geometry.ranges) end_with_slot(place, slot, "which does not exist");
    if (ledger->entries[slot].state != SLOT_FREE) end_with_slot(place, slot, "listed as free");
    if (listed[slot]++) end_with_slot(place, slot, "listed as free twice");
  }
}

void audit_ledger(const struct ledger *ledger, const char *when, const char *move, uint32_t slot) {
  uint64_t ticket = ledger->entries[slot].ticket;
  const struct place place = {.when = when, .move = move, .slot = slot, .ticket = ticket};
  struct sums sums = {.wanting = 0};
  for (uint32_t i = 0; i < ledger->geometry.ranges; i++) {
    expect_entry(&place, ledger, i);
    add(&sums, &ledger->entries[i]);
  }
  expect(&place, "the number of free slots", sums.counts[SLOT_FREE], ledger->free_count);
  for (uint32_t state = 0; state < SLOT_STATES; state++) {
    expect(&place, "the count of a state", sums.counts[state], ledger->counts[state]);
  }
  expect(&place, "wanting", sums.wanting, ledger->wanting);
  expect(&place, "committed_bytes", sums.committed_bytes, ledger->committed_bytes);
  expect(&place, "kept_bytes", sums.kept_bytes, ledger->kept_bytes);
  expect(&place, "existing_bytes", sums.existing_bytes, ledger->existing_bytes);
  expect(&place, "used_bytes", sums.used_bytes, ledger->used_bytes);
  expect_stack(&place, ledger);
}

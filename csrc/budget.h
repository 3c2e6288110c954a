/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_BUDGET_H
#define SHMLOADER_BUDGET_H

#include "ledger.h"

/*
 * The pages of a ledger's slots: how many exist, how many may exist, and within which sum.
 * Everything here is the trainer's. budget.c opens with the key invariant.
 */

/* What a slot adds to committed_bytes. */
static inline uint64_t budget_commitment(const struct ledger_entry *entry) {
  return entry->state == SLOT_PLACED ? entry->grant_bytes : entry->pages_bytes;
}

/* True if a slot waits for others than the workers. */
static inline bool budget_waits(const struct ledger_entry *entry) {
  return entry->state == SLOT_LEASED || entry->state == SLOT_FENCED ||
         entry->state == SLOT_FORKED || entry->state == SLOT_RETIRED;
}

/* What it adds to kept_bytes. */
static inline uint64_t budget_kept(const struct ledger_entry *entry) {
  return budget_waits(entry) ? entry->pages_bytes : 0;
}

/* What it adds to used_bytes. */
static inline uint64_t budget_used(const struct ledger_entry *entry) {
  bool is_answered = entry->state == SLOT_READY || budget_waits(entry);
  return is_answered ? entry->used_bytes : 0;
}

/* Take a slot out of the ledger's sums, before its state, grant or pages change. */
static inline struct ledger_entry *budget_leave(struct ledger *ledger, uint32_t slot) {
  struct ledger_entry *entry = &ledger->entries[slot];
  ledger->committed_bytes -= budget_commitment(entry);
  ledger->kept_bytes -= budget_kept(entry);
  ledger->existing_bytes -= entry->pages_bytes;
  ledger->used_bytes -= budget_used(entry);
  ledger->counts[entry->state]--;
  if (entry->state == SLOT_PLACED) ledger->seats[entry->worker].placed--;
  return entry;
}

/* Count it again, in this state. */
static inline void budget_enter(struct ledger *ledger, struct ledger_entry *entry,
                                enum slot_state state) {
  entry->state = state;
  ledger->committed_bytes += budget_commitment(entry);
  ledger->kept_bytes += budget_kept(entry);
  ledger->existing_bytes += entry->pages_bytes;
  ledger->used_bytes += budget_used(entry);
  ledger->counts[state]++;
  if (state == SLOT_PLACED) ledger->seats[entry->worker].placed++;
}

/*
 * Set how large a grant a slot's worker waits for, and up to which byte it finds no memory within
 * its grant; 0: it does not.
 */
static inline void budget_set_want(struct ledger *ledger, struct ledger_entry *entry,
                                   uint64_t want_bytes, uint64_t short_bytes) {
  ledger->wanting -= entry->want_bytes != 0;
  ledger->wanting += want_bytes != 0;
  ledger->shorts -= entry->short_bytes != 0;
  ledger->shorts += short_bytes != 0;
  entry->want_bytes = want_bytes;
  entry->short_bytes = short_bytes;
}

/* How many slots keep the workers busy. */
static inline uint32_t budget_idle(const struct ledger *ledger) {
  const uint32_t *counts = ledger->counts;
  return counts[SLOT_FREE] + counts[SLOT_PLACED] + counts[SLOT_READY];
}

/* Why a batch should leave its slot as it is delivered. */
enum budget_lack {
  BUDGET_LACKS_NOTHING = 0,
  BUDGET_KEPT = 1, /* its worker has an alias of it */
  BUDGET_FEW_SLOTS = 2,
  BUDGET_FEW_BYTES = 3,
};

/*
 * Find why a READY slot should not be leased, if so many slots are reserved for the workers, and
 * room for as many batches of this size. has_grown: there are slots enough.
 */
enum budget_lack budget_lack(const struct ledger *ledger, uint32_t slot, uint32_t reserve,
                             bool has_grown);

/* Make the first bytes of a slot exist. 0 or -errno; -EINTR: a signal arrived before all did. */
int budget_need(struct ledger *ledger, uint32_t slot, uint64_t bytes);

/* Give back a slot's pages after its first keep_bytes, except for locked ones. */
void budget_retake(struct ledger *ledger, uint32_t slot, uint64_t keep_bytes);

/*
 * Give back the pages that a reaped worker may have added unseen, unless the kernel refuses that.
 * budget_leave must have been called for the slot.
 */
void budget_retake_unseen(struct ledger *ledger, uint32_t slot);

/* Give back pages of FREE slots, coldest first, until missing bytes are found; returns how many. */
uint64_t budget_trim(struct ledger *ledger, uint64_t missing_bytes);

/* Note what the batches in use need now, after one more was answered. */
void budget_note_demand(struct ledger *ledger);

/* Give back pages beyond what batches have needed lately: of FREE slots, coldest first. */
void budget_shed(struct ledger *ledger);

/* What a slot may fill without asking: its share or the pages it has, as the budget allows. */
uint64_t budget_standing_grant(struct ledger *ledger, uint32_t slot, uint64_t request_bytes);

/* The largest grant that the budget allows this PLACED slot now, trimming FREE slots if needed. */
uint64_t budget_room(struct ledger *ledger, uint32_t slot, uint64_t want_bytes);

#endif

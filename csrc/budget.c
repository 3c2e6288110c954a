/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The pages of a ledger's slots.
 *
 * Key invariant: committed_bytes is, over all slots, the grant of those PLACED and the pages of all
 * others; kept_bytes is the pages of LEASED, FORKED and RETIRED slots. So every change of a slot's
 * state, grant or pages happens between budget_leave and budget_enter, which keep the sums, the
 * counts of the states among them.
 *
 * Placing keeps committed_bytes within ring_bytes, by trimming FREE slots or granting less. Only
 * the pages of a request may exceed it, without which nothing could be asked, and ledger_grant,
 * whose caller does so for the oldest ticket alone.
 *
 * Pages beyond what batches have needed lately are given back when a slot becomes FREE (demand.c),
 * as long as FREE slots have any: what is in use is never touched.
 *
 * Pages are added by the trainer for a request and by workers within their grant, and given back by
 * the trainer alone, by punching them out of the file.
 *
 * The first pages of a slot may be locked for devices, which read them where they lie (pinned.c).
 * They are never punched: a device would go on reading pages that the file has no more.
 *
 * Death of a worker leaves pages that it added and did not report: at most its grant. They are
 * punched when its slots are reclaimed. If the kernel refuses that, they are counted when the slot
 * is filled again: how many there are is not known, and pages that are counted and do not exist
 * would be used without a look for room.
 */

#include "budget.h"

enum budget_lack budget_lack(const struct ledger *ledger, uint32_t slot, uint32_t reserve,
                             bool has_grown) {
  const struct ledger_entry *entry = &ledger->entries[slot];
  /* The trainer may work in place, and the worker's copy must not change. */
  if (entry->answer.flags & ANSWER_KEPT) return BUDGET_KEPT;
  if (budget_idle(ledger) <= reserve && !has_grown) return BUDGET_FEW_SLOTS;
  uint64_t batch = entry->pages_bytes + 1;
  /* If ring_bytes cannot hold so many, all but two that it can hold are reserved, at least one. */
  uint64_t fitting = ledger->ring_bytes / batch;
  uint64_t most = fitting >= 2 * POLICY_IN_TURNS_SLOTS ? fitting - POLICY_IN_TURNS_SLOTS : 1;
  uint64_t needed = (1 + min_u64(most, reserve)) * batch;
  bool is_short = ledger->wanting != 0 || ledger->kept_bytes + needed > ledger->ring_bytes;
  return is_short ? BUDGET_FEW_BYTES : BUDGET_LACKS_NOTHING;
}

int budget_need(struct ledger *ledger, uint32_t slot, uint64_t bytes) {
  struct ledger_entry *entry = &ledger->entries[slot];
  if (bytes <= entry->pages_bytes) return 0;
  if (ledger_is_copy(ledger)) return -EPERM;
  uint64_t offset = segment_slot_offset(&ledger->geometry, slot) + entry->pages_bytes;
  uint64_t missing = bytes - entry->pages_bytes;
  int64_t added = platform_reserve(ledger->fd, offset, missing, ledger->geometry.page_bytes);
  if (added < 0) return (int)added;
  budget_leave(ledger, slot);
  entry->pages_bytes += (uint64_t)added;
  budget_enter(ledger, entry, entry->state);
  return (uint64_t)added < missing ? -EINTR : 0;
}

void budget_retake(struct ledger *ledger, uint32_t slot, uint64_t keep_bytes) {
  if (ledger_is_copy(ledger)) return;
  /* relaxed: only the trainer, which is here, changes it. */
  uint64_t locked =
      atomic_load_explicit(&ledger->entries[slot].locked_bytes, memory_order_relaxed);
  keep_bytes = max_u64(keep_bytes, locked);
  if (keep_bytes >= ledger->entries[slot].pages_bytes) return;
  struct ledger_entry *entry = budget_leave(ledger, slot);
  uint64_t offset = segment_slot_offset(&ledger->geometry, slot) + keep_bytes;
  STEP("retake: begun");
  if (platform_punch(ledger->fd, offset, entry->pages_bytes - keep_bytes) == 0) {
    entry->pages_bytes = keep_bytes;
  }
  STEP("retake: punched");
  budget_enter(ledger, entry, entry->state);
}

void budget_retake_unseen(struct ledger *ledger, uint32_t slot) {
  if (ledger_is_copy(ledger)) return;
  const struct ledger_entry *entry = &ledger->entries[slot];
  uint64_t unseen = entry->grant_bytes - entry->pages_bytes;
  uint64_t offset = segment_slot_offset(&ledger->geometry, slot) + entry->pages_bytes;
  STEP("unseen: begun");
  if (unseen > 0) (void)platform_punch(ledger->fd, offset, unseen);
  STEP("unseen: punched");
}

uint64_t budget_trim(struct ledger *ledger, uint64_t missing_bytes) {
  uint64_t before = ledger->committed_bytes;
  for (uint32_t i = 0; i < ledger->free_count; i++) {
    if (before - ledger->committed_bytes >= missing_bytes) break;
    uint32_t slot = ledger->free_slots[i];
    if (ledger->entries[slot].pages_bytes > 0) budget_retake(ledger, slot, 0);
  }
  return before - ledger->committed_bytes;
}

/*
 * What the batches in use need, with a guess for those that are not answered. If sizes are steady,
 * every slot that is placed will be filled; otherwise only those are counted that workers write
 * now, one each, because pages that wait in the others may be far too many.
 */
static uint64_t needed_bytes(const struct ledger *ledger) {
  uint64_t coming = ledger->counts[SLOT_PLACED];
  if (ledger->demand.keep_bytes == 0) coming = min_u64(coming, ledger->geometry.workers);
  return ledger->used_bytes + coming * ledger->demand.mean_bytes;
}

void budget_note_demand(struct ledger *ledger) {
  demand_rise(&ledger->demand, needed_bytes(ledger));
}

void budget_shed(struct ledger *ledger) {
  /* Nearly always, and each free comes here. */
  if (ledger->existing_bytes <= POLICY_FEW_PAGES_BYTES) return;
  uint64_t lately = demand_peak(&ledger->demand);
  uint64_t needed = needed_bytes(ledger);
  uint64_t worthwhile = lately / POLICY_WAITING_PART + POLICY_FEW_PAGES_BYTES;
  /* If sizes are not steady, the next large batch may come to any slot, or never. */
  if (ledger->demand.keep_bytes != 0) worthwhile += lately - min_u64(needed, lately);
  uint64_t most = needed + min_u64(ledger->slack_bytes, worthwhile);
  if (ledger->existing_bytes <= most) return;
  /* Some more, so that the next ones find it done. */
  uint64_t missing = ledger->existing_bytes - (most - most / POLICY_GIVEN_AHEAD_PART);
  for (uint32_t i = 0; i < ledger->free_count && missing > 0; i++) {
    uint32_t slot = ledger->free_slots[i];
    uint64_t pages = ledger->entries[slot].pages_bytes;
    /* A hole within a huge page would break that into small ones. */
    uint64_t keep = (pages - min_u64(pages, missing)) / HUGE_BYTES * HUGE_BYTES;
    if (keep < pages) budget_retake(ledger, slot, keep);
    missing -= min_u64(missing, pages - ledger->entries[slot].pages_bytes);
  }
}

uint64_t budget_room(struct ledger *ledger, uint32_t slot, uint64_t want_bytes) {
  uint64_t others = ledger->committed_bytes - budget_commitment(&ledger->entries[slot]);
  /* A worker's want may be any number: the sum below must not wrap. */
  want_bytes = min_u64(want_bytes, ledger->geometry.range_bytes);
  if (others + want_bytes > ledger->ring_bytes) {
    others -= budget_trim(ledger, others + want_bytes - ledger->ring_bytes);
  }
  return others < ledger->ring_bytes ? ledger->ring_bytes - others : 0;
}

uint64_t budget_standing_grant(struct ledger *ledger, uint32_t slot, uint64_t request_bytes) {
  uint64_t page_bytes = ledger->geometry.page_bytes;
  uint64_t pages = ledger->entries[slot].pages_bytes;
  uint64_t fair = min_u64(max_u64(ledger->share_bytes, pages), ledger->geometry.range_bytes);
  uint64_t room = budget_room(ledger, slot, fair) / page_bytes * page_bytes;
  return max_u64(min_u64(fair, room), request_bytes);
}

/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The guard finds native code that uses memory of a slot at the wrong time: C code with the
 * data_ptr() of a tensor that is gone, or a write beyond a batch. It is started when a ledger is
 * made, and from then on
 *
 *   - the trainer's mapping of a slot is closed (PROT_NONE), except from ledger_open, by which a
 *     batch is delivered, to the end of its lease, and while a request is written. A late use
 *     faults where it happens, and fault.c says of which slot and ticket it was;
 *   - a slot that becomes FREE is filled with POISON, which shows late reads by others: a worker,
 *     or a child of a fork that was not noticed. FORKED and RETIRED slots are not filled, because
 *     they may rightly be read. FREE slots rest as long as possible: the one freed first is taken;
 *   - a canary stands after each batch from the worker's first allocation on (canary.h). The
 *     worker looks at it when it allocates and writes, the trainer when the answer comes. From then
 *     until the slot is given up, all that lies after the payload has to keep its sum;
 *   - each move recounts the ledger first (audit.c).
 *
 * Key invariant: a slot is open here while a lease on it is alive in this process. So no correct
 * use faults: our own reads go through ledger_open, our own workers and their children have other
 * mappings, and a child of the trainer inherits the open slots with the batches that it inherits.
 *
 * Threads. The last alias may die on any thread: that thread looks at the sum and closes the slot
 * before it pushes it, so that the trainer, which opens it for the next batch, comes after. Nothing
 * else is shared; the handler of faults, on any thread, reads what it finds.
 *
 * Forks. A forked child closes slots in its own mapping, when all of its aliases are gone, and
 * changes nothing that it shares with the trainer.
 */

#include "guard.h"

#include <stdlib.h>

#include "canary.h"
#include "message.h"

enum { POISON = 0xDB };

int guard_start(struct ledger *ledger) {
  const struct geometry *geometry = &ledger->geometry;
  uint64_t ranges_bytes = geometry->total_bytes - geometry->slots_offset;
  struct guard *guard = calloc(1, sizeof *guard + geometry->ranges * sizeof *guard->slots);
  if (guard == NULL) return -ENOMEM;
  guard->base = ledger->base;
  guard->geometry = *geometry;
  memset(guard->poison, POISON, sizeof guard->poison);
  if (mprotect(ledger->base + geometry->slots_offset, ranges_bytes, PROT_NONE) != 0) {
    int error = errno;
    free(guard);
    return -error;
  }
  guard_watch(guard);
  ledger->guard = guard;
  /* Slots are taken from the bottom of the stack: the lowest first, as without a guard. */
  for (uint32_t i = 0; i < ledger->free_count; i++) ledger->free_slots[i] = i;
  return 0;
}

void guard_open(struct ledger *ledger, uint32_t slot, uint64_t bytes) {
  struct guard *guard = ledger->guard;
  uint64_t open_bytes = round_up(bytes, guard->geometry.page_bytes);
  guard_note(&guard->slots[slot].open_bytes, open_bytes);
  if (mprotect(guard_range(guard, slot), open_bytes, PROT_READ | PROT_WRITE) == 0) return;
  message_abort("slots cannot be guarded, because the kernel has no room for so many mappings: "
                "raise vm.max_map_count or lower slots");
}

void guard_close(struct ledger *ledger, uint32_t slot) {
  struct guard *guard = ledger->guard;
  uint64_t open_bytes = guard_peek(&guard->slots[slot].open_bytes);
  guard_note(&guard->slots[slot].open_bytes, 0);
  if (open_bytes > 0) (void)mprotect(guard_range(guard, slot), open_bytes, PROT_NONE);
}

/* True if an answer of this kind has a batch, and so a canary after it. */
static bool has_batch(const struct slot_answer *answer) {
  return answer->kind == ANSWER_BATCH || answer->kind == ANSWER_ERROR;
}

/* The end of the canary of a slot's answer. */
static uint64_t guarded_end(const struct slot_answer *answer) {
  uint64_t end = answer_end(answer);
  return end + canary_bytes(end, answer->pages_bytes);
}

/* Read through the file, since the slot may be closed here. False: it was closed under us. */
static bool read_slot(const struct ledger *ledger, uint32_t slot, uint64_t at, uint8_t *to,
                      uint64_t bytes) {
  uint64_t offset = segment_slot_offset(&ledger->geometry, slot) + at;
  return pread(ledger->fd, to, bytes, (off_t)offset) == (ssize_t)bytes;
}

/* True if the canary that the worker left is there. */
static bool has_canary(const struct ledger *ledger, uint32_t slot) {
  const struct ledger_entry *entry = &ledger->entries[slot];
  uint64_t end = answer_end(&entry->answer);
  uint64_t bytes = canary_bytes(end, entry->answer.pages_bytes);
  uint8_t found[CANARY_BYTES];
  if (!read_slot(ledger, slot, end, found, bytes)) return true;
  return canary_damage(found, bytes, entry->ticket, slot) == bytes;
}

/* A sum over what lies after the payload (FNV-1a, by Fowler, Noll, Vo); 0: unreadable. */
static uint64_t sum_tail(const struct ledger *ledger, uint32_t slot) {
  const struct slot_answer *answer = &ledger->entries[slot].answer;
  uint64_t end = guarded_end(answer);
  uint64_t sum = UINT64_C(0xcbf29ce484222325);
  uint8_t block[1024];
  for (uint64_t at = answer->payload_bytes; at < end;) {
    size_t bytes = end - at < sizeof block ? (size_t)(end - at) : sizeof block;
    if (!read_slot(ledger, slot, at, block, bytes)) return 0;
    for (size_t i = 0; i < bytes; i++) sum = (sum ^ block[i]) * UINT64_C(0x100000001b3);
    at += bytes;
  }
  return sum;
}

const char *guard_fault(struct ledger *ledger, uint32_t slot) {
  if (!has_batch(&ledger->entries[slot].answer)) return NULL;
  if (!has_canary(ledger, slot)) return "something was written beyond the end of its batch";
  ledger->guard->slots[slot].tail_sum = sum_tail(ledger, slot);
  return NULL;
}

/* The bytes after a batch must not change while it is here: only faulty native code does it. */
static void look_again(const struct ledger *ledger, uint32_t slot) {
  const struct ledger_entry *entry = &ledger->entries[slot];
  if (!has_batch(&entry->answer)) return;
  /* The end of its lease has looked, and then gave the pages back. */
  if (entry->pages_bytes == 0) return;
  uint64_t came = ledger->guard->slots[slot].tail_sum;
  uint64_t goes = sum_tail(ledger, slot);
  if (goes == came || goes == 0 || came == 0) return;
  message_abort("something was written beyond the %" PRIu64 " bytes of the batch of ticket %" PRIu64
                " in slot %" PRIu64 ", after it came from worker %" PRIu64
                " and before it was released: by native code, here or in that worker",
                entry->answer.payload_bytes, entry->ticket, (uint64_t)slot,
                (uint64_t)entry->worker);
}

void guard_open_batch(struct ledger *ledger, uint32_t slot) {
  uint64_t end = guarded_end(&ledger->entries[slot].answer);
  if (end > guard_peek(&ledger->guard->slots[slot].open_bytes)) guard_open(ledger, slot, end);
}

void guard_lease(struct ledger *ledger, uint32_t slot) {
  const struct ledger_entry *entry = &ledger->entries[slot];
  struct guard_slot *seen = &ledger->guard->slots[slot];
  guard_audit(ledger);
  guard_open_batch(ledger, slot);
  guard_note(&seen->ticket, entry->ticket);
  guard_note(&seen->batch_bytes, entry->answer.payload_bytes);
  guard_note(&seen->released_ns, GUARD_LEASED);
}

void guard_release(struct ledger *ledger, uint32_t slot) {
  /* Not in a child: the trainer may have placed the slot again. */
  if (!ledger_is_copy(ledger)) look_again(ledger, slot);
  guard_note(&ledger->guard->slots[slot].released_ns, (uint64_t)platform_now_ns());
  guard_close(ledger, slot);
}

/* Fill a slot through the file: it stays closed meanwhile, and no page is added here. */
static void poison(const struct ledger *ledger, uint32_t slot, uint64_t bytes) {
  uint64_t offset = segment_slot_offset(&ledger->geometry, slot);
  for (uint64_t done = 0; done < bytes;) {
    uint64_t left = bytes - done;
    size_t block = (size_t)min_u64(left, GUARD_POISON_BLOCK);
    ssize_t written = pwrite(ledger->fd, ledger->guard->poison, block, (off_t)(offset + done));
    /* Unpoisoned bytes are a chance missed, not a fault. */
    if (written <= 0) return;
    done += (uint64_t)written;
  }
}

void guard_free(struct ledger *ledger, uint32_t slot) {
  const struct ledger_entry *entry = &ledger->entries[slot];
  guard_audit(ledger);
  if (ledger_is_copy(ledger)) return;
  bool answered = entry->state != SLOT_PLACED;
  if (answered) look_again(ledger, slot);
  guard_close(ledger, slot);
  if (entry->children > 0 || entry->retire) return;
  /* Only pages that are there: a new one would not be counted. */
  uint64_t used = answered ? guarded_end(&entry->answer) : entry->pages_bytes;
  poison(ledger, slot, min_u64(used, entry->pages_bytes));
}

void guard_place(struct ledger *ledger) {
  uint32_t last = ledger->free_count - 1;
  uint32_t first_freed = ledger->free_slots[0];
  guard_audit(ledger);
  memmove(ledger->free_slots, ledger->free_slots + 1, last * sizeof *ledger->free_slots);
  ledger->free_slots[last] = first_freed;
}

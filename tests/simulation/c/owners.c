/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Every shared word has one writer at a time: the invariant itself, looked at.
 *
 * In a simulated run one process goes on at a time, and whatever has changed in the segment since
 * it got the turn, it has changed. So before it gives the turn on, each line of the control block,
 * of the workers' blocks and rings and of the slot table is compared with what stood there, and a
 * line that is new must be this process's to write:
 *
 *   - the trainer's: its own words everywhere, and all that was a worker's once that is gone;
 *   - a worker's: its clock, view and doorbell, the ends of its two rings, and its half of the
 *     headers of the slots whose orders are in force for it;
 *   - both: `rings` of a doorbell;
 *   - of no other process anything: a nursery, a child of the trainer, a worker that has no seat.
 *
 * The slots themselves are not compared: their bits are, by the run. Nor is the log, which no
 * worker maps for writing or looks at.
 */

#include "watch_owners.h"

static uint8_t *watched; /* the segment as this process has it mapped; NULL: it has none */
static struct geometry shape;

static uint64_t length(void) { return min_u64(shape.log_offset, OWNERS_BYTES); }

void owners_note(uint8_t *before) {
  if (watched != NULL) memcpy(before, watched, length());
}

uint64_t owners_offset(const void *address) {
  uint64_t offset = (uint64_t)((uintptr_t)address - (uintptr_t)watched);
  return watched != NULL && offset < length() ? offset : OWNERS_BYTES;
}

void owners_watch(uint8_t *base, const struct geometry *geometry) {
  watched = base;
  shape = *geometry;
}

bool owners_watches(const uint8_t *base) { return watched != NULL && watched == base; }

void owners_forget(void) { watched = NULL; }

/* Compare two words of a line, so that each has its own writer. */
static bool differs(const uint8_t *before, uint64_t at, size_t field) {
  return memcmp(before + at + field, watched + at + field, sizeof(uint32_t)) != 0;
}

/* A doorbell: rings is everybody's, parked its owner's; the next word is the door's. */
static bool may_write_bell(const uint8_t *before, uint64_t at, bool is_owner) {
  return is_owner || !differs(before, at, offsetof(struct doorbell, parked));
}

static bool is_worker(uint32_t role) { return role >= FIRST_WORKER; }

static bool may_write_control(const uint8_t *before, uint64_t at, uint32_t role) {
  if (role == TRAINER) return true;
  bool is_bell = at == offsetof(struct control_block, doorbell);
  return is_worker(role) && is_bell && may_write_bell(before, at, false);
}

/* A line of a ring, at an offset in it; is_writer: of the ring. */
static bool may_write_ring(uint64_t at, bool is_writer) {
  bool is_readers = at >= offsetof(struct ring, read_pos) && at < offsetof(struct ring, cells);
  return is_readers != is_writer;
}

/* A line of a worker's block or rings, by the trainer or by that worker. */
static bool may_write_seat(const uint8_t *before, uint64_t line, uint64_t at, bool is_trainer) {
  uint64_t tasks = sizeof(struct worker_block);
  uint64_t ready = tasks + ring_bytes(shape.ring_capacity);
  if (at >= ready) return may_write_ring(at - ready, !is_trainer);
  if (at >= tasks) return may_write_ring(at - tasks, is_trainer);
  if (at < offsetof(struct worker_block, resume)) return may_write_bell(before, line, !is_trainer);
  if (at < offsetof(struct worker_block, clock)) return is_trainer;
  return !is_trainer;
}

/* Returns true if the order in a slot is in force for a worker. */
static bool holds(uint32_t slot, uint32_t worker) {
  struct slot_header *header = segment_header(watched, &shape, slot);
  /* relaxed: the turn orders all processes of a run. */
  uint64_t mark = atomic_load_explicit(&header->order.in_force, memory_order_relaxed);
  return mark >> 47 == worker + 1;
}

/* Returns true if what stands in a slot may pass for the answer to its order, written or not. */
static bool passes_for_answered(uint32_t slot) {
  const struct slot_header *header = segment_header(watched, &shape, slot);
  return header->answer.ticket == header->order.ticket;
}

void owners_forge(uint32_t worker, uint64_t number) {
  uint32_t slot = (uint32_t)(number % shape.ranges);
  for (uint32_t i = 0; number / shape.ranges % 2 == 0 && i < shape.ranges; i++) {
    if (holds(i, worker)) slot = i;
  }
  /* The bits of a batch are the worker's: what it says too early is wrong, and nothing notices. */
  if (holds(slot, worker) && passes_for_answered(slot)) return;
  struct ring_writer ready =
      ring_open_writer(segment_ready_ring(watched, &shape, worker), shape.ring_capacity);
  if (ring_push(&ready, cell_make(VERB_READY, slot))) {
    doorbell_ring(&segment_control(watched)->doorbell);
  }
}

static bool may_write_header(uint64_t at, uint32_t role) {
  uint32_t slot = (uint32_t)(at / sizeof(struct slot_header));
  bool is_order = at % sizeof(struct slot_header) < offsetof(struct slot_header, answer);
  if (role == TRAINER) return is_order;
  return is_worker(role) && !is_order && holds(slot, role - FIRST_WORKER);
}

static bool may_write(const uint8_t *before, uint64_t at, uint32_t role, owners_lives lives) {
  if (at < sizeof(struct control_block)) return may_write_control(before, at, role);
  if (at >= shape.table_offset) return may_write_header(at - shape.table_offset, role);
  uint64_t past = at - sizeof(struct control_block);
  uint32_t worker = (uint32_t)(past / shape.worker_stride);
  bool is_trainer = role == TRAINER;
  if (is_trainer && !lives(FIRST_WORKER + worker)) return true;
  if (!is_trainer && role != FIRST_WORKER + worker) return false;
  return may_write_seat(before, at, past % shape.worker_stride, is_trainer);
}

uint64_t owners_check(uint32_t role, uint8_t *before, owners_lives lives) {
  if (watched == NULL) return 0;
  for (uint64_t at = 0; at < length(); at += CACHE_LINE) {
    if (memcmp(before + at, watched + at, CACHE_LINE) == 0) continue;
    if (!may_write(before, at, role, lives)) return at + 1;
    memcpy(before + at, watched + at, CACHE_LINE);
  }
  return 0;
}

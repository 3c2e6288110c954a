/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_LOG_H
#define SHMLOADER_LOG_H

#include "histogram.h"
#include "times.h"

struct ledger;
struct ledger_entry;

#define LOG_NO_SLOT UINT32_MAX

/* Where the trainer is, and the batch that it is handing out, in private memory; see log.c. */
struct log {
  struct trainer_view view; /* what stands in the segment after the next write */
  struct log_record draft;  /* the batch that the current next() will return */
  uint32_t draft_slot;      /* where it stays; LOG_NO_SLOT: it was copied out */
  bool has_draft;
  bool has_returned;         /* the last next() returned a batch, or an error in its place */
  uint64_t in_vain_ns;       /* in calls of next() for this batch that raised, as timeouts do */
  uint64_t parked_before_ns; /* view.parked_ns when the first next() for this batch began */
  struct histogram nexts;    /* how long it took to get each batch of this epoch */
  struct histogram steps;    /* how long the user had each batch of this epoch */
};

/*
 * Write the nameplate. Trainer only.
 * known: owner, loader, options and label, as the caller knows them; the rest is filled in.
 */
void log_name(struct ledger *ledger, const struct nameplate *known);

/* Say whether an iterator uses the segment. Trainer only; wait-free. */
void log_segment(struct ledger *ledger, enum segment_state state);

/*
 * An epoch begins. Trainer only; wait-free.
 * length: its batches, or VIEW_UNKNOWN; resumed_at: those of them that an earlier run delivered.
 * begun_ns: when the user asked for it, before workers were started.
 */
void log_begin(struct ledger *ledger, uint64_t epoch, uint64_t length, uint64_t resumed_at,
               uint64_t begun_ns);

/* The epoch is over, or was broken off. Trainer only; wait-free. */
void log_end(struct ledger *ledger);

/* next() was called. Trainer only; wait-free. */
void log_ask(struct ledger *ledger);

/* What a READY slot holds will be returned; spill: why it was copied out, or 0. Trainer only. */
void log_take(struct ledger *ledger, uint32_t slot, uint64_t spill);

/* next() returns or raises. Trainer only; wait-free. */
void log_return(struct ledger *ledger);

/* The trainer was parked in next(). Trainer only; wait-free. */
void log_parked(struct ledger *ledger, uint64_t ns);

/* A lease has ended, and the trainer has seen it. Trainer only; wait-free. */
void log_release(struct ledger *ledger, uint32_t slot);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_SEGMENT_H
#define SHMLOADER_SEGMENT_H

/*
 * What lies where in a segment, of which README.md has the picture, and which process writes it.
 * Offsets are never read from there: nothing that stands in shared memory can move a bound. Each
 * shared struct has a cache line of its own for each writer.
 */

#include "answer.h"
#include "cell.h"
#include "clock.h"
#include "doorbell.h"
#include "looks.h"
#include "order.h"
#include "ring.h"
#include "times.h"
#include "view.h"
#include "words.h"

#define SEGMENT_WORKERS_MAX (UINT32_C(1) << 16)

/* One entry of the slot table. */
struct slot_header {
  alignas(CACHE_LINE) struct slot_order order;
  alignas(CACHE_LINE) struct slot_answer answer;
  alignas(CACHE_LINE) struct slot_times times;
};

/* What a worker needs to begin the next epoch. */
struct worker_resume {
  uint64_t seed;
  uint64_t has_seed; /* 0: there is none */
};

struct worker_block {
  struct doorbell doorbell; /* rung by the trainer */
  /* Written by the trainer before VERB_RESUME is pushed. */
  alignas(CACHE_LINE) struct worker_resume resume;
  struct worker_clock clock;
  alignas(CACHE_LINE) struct worker_view view;
};

struct control_block {
  struct nameplate nameplate; /* the first, where viewers look for it */
  alignas(CACHE_LINE) struct trainer_view trainer;
  struct doorbell doorbell; /* rung by all workers */
  /* Written by the trainer: 1 from the moment it wants all workers to leave. */
  alignas(CACHE_LINE) _Atomic uint32_t stopping;
  /* Written by the trainer: 1 while there are cores for looks before parking (looks.c). */
  _Atomic uint32_t may_look;
  /* Written by the trainer: how many workers share what memory there is; 0: all have a seat. */
  _Atomic uint32_t sharers;
};

/* The offset of every part; private to each process, equal in all. */
struct geometry {
  uint32_t workers;
  uint32_t ranges;        /* entries of the slot table: slots and spares */
  uint32_t ring_capacity;
  uint32_t page_bytes;    /* pages come and are counted in units of this; at most HUGE_BYTES */
  uint64_t range_bytes;   /* length of one slot's range */
  uint64_t worker_stride; /* from one worker block to the next */
  uint64_t table_offset;
  uint64_t log_offset;
  uint64_t table_end;     /* the end of all that is no slot, the log included */
  uint64_t slots_offset;
  uint64_t total_bytes;
};

static inline uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

static inline uint64_t round_up(uint64_t bytes, uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

/* Fill in a geometry. 0, or -EINVAL: a number is zero or too large, or the total exceeds 2^62. */
static inline int geometry_init(struct geometry *geometry, uint32_t workers, uint32_t ranges,
                                uint64_t range_bytes) {
  if (workers == 0 || workers > SEGMENT_WORKERS_MAX) return -EINVAL;
  if (ranges == 0 || ranges > SLOTS_MAX) return -EINVAL;
  if (range_bytes == 0 || range_bytes > (UINT64_C(1) << 61) / ranges - HUGE_BYTES) return -EINVAL;
  /* Each slot stands in a ring once, and beside it there may be a want and a resume or quit. */
  uint32_t capacity = ring_capacity(ranges + 8);
  uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
  uint64_t stride = sizeof(struct worker_block) + 2 * ring_bytes(capacity);
  uint64_t table = sizeof(struct control_block) + workers * stride;
  uint64_t log = table + ranges * sizeof(struct slot_header);
  uint64_t table_end = log + LOG_RECORDS * sizeof(struct log_record);
  uint64_t slots = round_up(table_end, HUGE_BYTES);
  uint64_t range = round_up(range_bytes, HUGE_BYTES);
  *geometry = (struct geometry){.workers = workers,
                                .ranges = ranges,
                                .ring_capacity = capacity,
                                .page_bytes = (uint32_t)page_bytes,
                                .range_bytes = range,
                                .worker_stride = stride,
                                .table_offset = table,
                                .log_offset = log,
                                .table_end = table_end,
                                .slots_offset = slots,
                                .total_bytes = slots + ranges * range};
  return 0;
}

static inline struct control_block *segment_control(uint8_t *base) {
  return (struct control_block *)base;
}

/* How many workers share what memory there is. */
static inline uint32_t segment_sharers(uint8_t *base, const struct geometry *geometry) {
  /* relaxed: a number of a moment, which moves no bound. */
  uint32_t sharers = atomic_load_explicit(&segment_control(base)->sharers, memory_order_relaxed);
  return sharers == 0 || sharers > geometry->workers ? geometry->workers : sharers;
}

static inline struct worker_block *segment_worker(uint8_t *base, const struct geometry *geometry,
                                                  uint32_t worker) {
  uint64_t offset = sizeof(struct control_block) + worker * geometry->worker_stride;
  return (struct worker_block *)(base + offset);
}

static inline struct ring *segment_task_ring(uint8_t *base, const struct geometry *geometry,
                                             uint32_t worker) {
  return (struct ring *)(segment_worker(base, geometry, worker) + 1);
}

static inline struct ring *segment_ready_ring(uint8_t *base, const struct geometry *geometry,
                                              uint32_t worker) {
  uint8_t *task_ring = (uint8_t *)segment_task_ring(base, geometry, worker);
  return (struct ring *)(task_ring + ring_bytes(geometry->ring_capacity));
}

static inline struct slot_header *segment_header(uint8_t *base, const struct geometry *geometry,
                                                 uint32_t slot) {
  return (struct slot_header *)(base + geometry->table_offset) + slot;
}

static inline struct log_record *segment_record(uint8_t *base, const struct geometry *geometry,
                                                uint32_t place) {
  return (struct log_record *)(base + geometry->log_offset) + place;
}

static inline uint64_t segment_slot_offset(const struct geometry *geometry, uint32_t slot) {
  return geometry->slots_offset + slot * geometry->range_bytes;
}

#endif

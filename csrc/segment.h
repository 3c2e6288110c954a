/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_SEGMENT_H
#define SHMLOADER_SEGMENT_H

/*
 * What lies where in a segment, and who writes it.
 *
 *   control block | per worker: worker block, task ring, ready ring | slot table | slots
 *
 * Everything is an offset from the base, so each process may map the segment anywhere. The geometry
 * is computed from four numbers that every process gets when it starts, never read from the
 * segment: nothing that stands in shared memory can move a bound. Each shared struct is split into
 * cache lines by writer.
 */

#include "doorbell.h"
#include "ring.h"

/* A value in a ring: what happens, and to which slot. */
enum verb {
  VERB_PLACE = 1,   /* trainer: the slot holds a request for you */
  VERB_RESUME = 2,  /* trainer: start the next epoch (the seed stands in the worker block) */
  VERB_QUIT = 3,    /* trainer: leave */
  VERB_READY = 4,   /* worker: the slot holds the answer */
  VERB_WANT = 5,    /* worker: the batch needs a larger grant, and I wait */
  VERB_RESUMED = 6, /* worker: next epoch started */
};

#define SLOT_BITS 24
#define SLOT_MASK ((UINT32_C(1) << SLOT_BITS) - 1)
#define SLOTS_MAX (UINT32_C(1) << (SLOT_BITS - 1))
#define SEGMENT_WORKERS_MAX (UINT32_C(1) << 16)

static inline uint32_t cell_make(enum verb verb, uint32_t slot) {
  return (uint32_t)verb << SLOT_BITS | slot;
}
static inline uint32_t cell_verb(uint32_t cell) { return cell >> SLOT_BITS; }
static inline uint32_t cell_slot(uint32_t cell) { return cell & SLOT_MASK; }

/* How the request in a slot is written. */
enum request_kind {
  REQUEST_INDICES = 1, /* a list of int64 */
  REQUEST_INDEX = 2,   /* one int64 */
  REQUEST_NONES = 3,   /* a list of None; one int64 says how many */
  REQUEST_PICKLED = 4,
};

enum answer_kind {
  ANSWER_BATCH = 1,
  ANSWER_ERROR = 2,   /* an exception of user code, as a batch of one object */
  ANSWER_END = 3,     /* this worker's iterable dataset is exhausted */
  ANSWER_NOTHING = 4, /* a request skipped, because the worker is past its end */
};

/* The answer's flag: an alias of the slot is still alive in the worker. */
#define ANSWER_KEPT 1u
/* The order's mode: hand out no slot memory, copy the batch in. */
#define ORDER_COPY_IN 1u
/* The order's mode: leave a canary behind the batch. */
#define ORDER_GUARDED 2u

/* The trainer's half of a slot's header. Written by the trainer, read by the worker. */
struct slot_order {
  alignas(CACHE_LINE) uint64_t ticket;
  uint64_t request_bytes;
  uint64_t pages_bytes;  /* pages that exist from the slot's start */
  uint64_t expect_bytes; /* how large the batch will probably be */
  uint32_t request_kind;
  uint32_t mode;
  /* Raised while the worker waits, hence atomic: bytes of the range that it may fill. */
  _Atomic uint64_t grant_bytes;
  /* The want that was refused; 0: none. A later, smaller want is asked anew. */
  _Atomic uint64_t refused_bytes;
};

/* The worker's half. Written by the worker that holds the slot, read by the trainer. */
struct slot_answer {
  alignas(CACHE_LINE) uint64_t ticket; /* the order's, said back */
  uint16_t kind;
  uint16_t flags;
  uint32_t snapshot_bytes; /* behind the layout: where another worker could go on from here */
  uint64_t payload_bytes; /* leaves lie in [0, payload_bytes) */
  uint64_t layout_offset;
  uint64_t layout_bytes;
  uint64_t pages_bytes;   /* pages that exist now */
  uint64_t want_bytes;    /* with VERB_WANT: the grant that the batch needs */
  uint64_t pickled_bytes; /* how much of the payload is a pickle */
};

/* Where the bytes of an answer end in its slot, layout and snapshot included. */
static inline uint64_t answer_end(const struct slot_answer *answer) {
  uint64_t end = answer->layout_offset + answer->layout_bytes + answer->snapshot_bytes;
  return end > answer->payload_bytes ? end : answer->payload_bytes;
}

struct slot_header {
  struct slot_order order;
  struct slot_answer answer;
};

_Static_assert(sizeof(struct slot_order) == CACHE_LINE, "an order is one line");
_Static_assert(sizeof(struct slot_answer) == CACHE_LINE, "an answer is one line");

/* Nanoseconds a worker spent. Written by the worker, for stats alone. */
struct worker_clock {
  alignas(CACHE_LINE) _Atomic uint64_t busy_ns;
  _Atomic uint64_t starved_ns;
  _Atomic uint64_t blocked_ns;
};

struct worker_block {
  struct doorbell doorbell; /* rung by the trainer */
  /* Written by the trainer before VERB_RESUME is pushed: the seed and whether there is one. */
  alignas(CACHE_LINE) uint64_t resume_seed;
  uint64_t resume_has_seed;
  struct worker_clock clock;
};

static inline void clock_one(_Atomic uint64_t *clock, uint64_t ns) {
  /* relaxed: only this worker writes its clock, and nothing is read because of it. */
  uint64_t now = atomic_load_explicit(clock, memory_order_relaxed);
  /* relaxed: as above. */
  atomic_store_explicit(clock, now + ns, memory_order_relaxed);
}

static inline void clock_add(struct worker_block *block, uint64_t busy_ns, uint64_t starved_ns,
                             uint64_t blocked_ns) {
  STEP("clock: begun");
  clock_one(&block->clock.busy_ns, busy_ns);
  STEP("clock: busy_ns");
  clock_one(&block->clock.starved_ns, starved_ns);
  STEP("clock: starved_ns");
  clock_one(&block->clock.blocked_ns, blocked_ns);
  STEP("clock: blocked_ns");
}

static inline uint64_t clock_busy_ns(struct worker_block *block) {
  /* relaxed: a number for people. */
  return atomic_load_explicit(&block->clock.busy_ns, memory_order_relaxed);
}

static inline uint64_t clock_starved_ns(struct worker_block *block) {
  /* relaxed: a number for people. */
  return atomic_load_explicit(&block->clock.starved_ns, memory_order_relaxed);
}

static inline uint64_t clock_blocked_ns(struct worker_block *block) {
  /* relaxed: a number for people. */
  return atomic_load_explicit(&block->clock.blocked_ns, memory_order_relaxed);
}

struct control_block {
  struct doorbell doorbell; /* rung by all workers */
  /* Written by the trainer: 1 from the moment it wants all workers to leave. */
  alignas(CACHE_LINE) _Atomic uint32_t stopping;
};

/* Where everything lies; private to each process, equal in all. */
struct geometry {
  uint32_t workers;
  uint32_t ranges;        /* entries of the slot table: slots and spares */
  uint32_t ring_capacity;
  uint32_t page_bytes;
  uint64_t range_bytes;   /* length of one slot's range */
  uint64_t worker_stride; /* from one worker block to the next */
  uint64_t table_offset;
  uint64_t table_end;
  uint64_t slots_offset;
  uint64_t total_bytes;
};

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
  uint64_t table_end = table + ranges * sizeof(struct slot_header);
  uint64_t slots = round_up(table_end, HUGE_BYTES);
  uint64_t range = round_up(range_bytes, HUGE_BYTES);
  *geometry = (struct geometry){.workers = workers,
                                .ranges = ranges,
                                .ring_capacity = capacity,
                                .page_bytes = (uint32_t)page_bytes,
                                .range_bytes = range,
                                .worker_stride = stride,
                                .table_offset = table,
                                .table_end = table_end,
                                .slots_offset = slots,
                                .total_bytes = slots + ranges * range};
  return 0;
}

static inline struct control_block *segment_control(uint8_t *base) {
  return (struct control_block *)base;
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

static inline uint64_t segment_slot_offset(const struct geometry *geometry, uint32_t slot) {
  return geometry->slots_offset + slot * geometry->range_bytes;
}

#endif

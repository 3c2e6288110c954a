/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_RING_H
#define SHMLOADER_RING_H

/*
 * A bounded queue of 32-bit values between one writer and one reader, in shared memory.
 *
 * State. write_pos counts the values ever pushed, read_pos the values ever popped; both run freely
 * and wrap at 2^32. The cell of position p is cells[p & mask].
 *
 * Key invariant: 0 <= write_pos - read_pos <= mask + 1, as an unsigned difference. Cells in
 * [read_pos, write_pos) belong to the reader, all others to the writer. Wrap-around of the
 * positions is harmless because only their difference is used and the capacity is at most 2^31.
 *
 * Each side keeps its own position and the mask in private memory and publishes the position; of
 * the shared words it reads only the other side's position, and keeps the last value seen, so that
 * a push or a pop touches the other side's cache line only when the ring looks full or empty. What
 * the other side writes can therefore make a pop return nonsense, but never read outside the cells;
 * a reader that does not trust its writer asks ring_is_overrun first.
 *
 * The algorithm is Lamport's (1983) with cached positions.
 */

#include "platform.h"

#define RING_CAPACITY_MAX (UINT32_C(1) << 24)

struct ring {
  /* Written by the writer, read by the reader: how many values were ever pushed. */
  alignas(CACHE_LINE) _Atomic uint32_t write_pos;
  /* Written by the reader, read by the writer: the writer's licence to use cells again. */
  alignas(CACHE_LINE) _Atomic uint32_t read_pos;
  /* Written by the writer; capacity many: { verb: 31..24, slot: 23..0 }, as cell.h makes them. */
  alignas(CACHE_LINE) _Atomic uint32_t cells[];
};

_Static_assert(offsetof(struct ring, read_pos) == CACHE_LINE, "the positions do not share a line");
_Static_assert(offsetof(struct ring, cells) == 2 * CACHE_LINE, "cells start on their own line");

/* The writer's end, in its private memory. */
struct ring_writer {
  struct ring *ring;
  uint32_t mask;
  uint32_t write_pos;     /* the truth about write_pos */
  uint32_t read_pos_seen; /* last read_pos seen: never ahead of the reader */
};

/* The reader's end, in its private memory. */
struct ring_reader {
  struct ring *ring;
  uint32_t mask;
  uint32_t read_pos;
  uint32_t write_pos_seen;
};

/* The smallest power of two that is at least n; n in [1, 2^31]. */
static inline uint32_t ring_capacity(uint32_t n) {
  uint32_t capacity = 1;
  while (capacity < n) capacity *= 2;
  return capacity;
}

static inline size_t ring_bytes(uint32_t capacity) {
  size_t bytes = sizeof(struct ring) + capacity * sizeof(uint32_t);
  return (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
}

/* Empty the ring. No other process may use it; tests start the positions near their maximum. */
static inline void ring_init(struct ring *ring, uint32_t start_pos) {
  /* relaxed: before the ring is handed to another process. */
  atomic_store_explicit(&ring->write_pos, start_pos, memory_order_relaxed);
  STEP("reopen: write_pos");
  /* relaxed: as above. */
  atomic_store_explicit(&ring->read_pos, start_pos, memory_order_relaxed);
  STEP("reopen: read_pos");
}

static inline struct ring_writer ring_open_writer(struct ring *ring, uint32_t capacity) {
  struct ring_writer end = {.ring = ring, .mask = capacity - 1};
  /* relaxed: only this process will write write_pos from here on. */
  end.write_pos = atomic_load_explicit(&ring->write_pos, memory_order_relaxed);
  /* relaxed: a first guess; a push that finds the ring full looks again with acquire. */
  end.read_pos_seen = atomic_load_explicit(&ring->read_pos, memory_order_relaxed);
  return end;
}

static inline struct ring_reader ring_open_reader(struct ring *ring, uint32_t capacity) {
  struct ring_reader end = {.ring = ring, .mask = capacity - 1};
  /* relaxed: only this process will write read_pos from here on. */
  end.read_pos = atomic_load_explicit(&ring->read_pos, memory_order_relaxed);
  /* The first pop looks at write_pos itself, with acquire. */
  end.write_pos_seen = end.read_pos;
  return end;
}

/* Append value. Only the writer; wait-free. False: full, nothing happened. */
static inline bool ring_push(struct ring_writer *end, uint32_t value) {
  struct ring *ring = end->ring;
  if (end->write_pos - end->read_pos_seen > end->mask) {
    /* sync emptied-A <- emptied-R: the reader is done with the cells before read_pos. */
    end->read_pos_seen = atomic_load_explicit(&ring->read_pos, memory_order_acquire);
    if (end->write_pos - end->read_pos_seen > end->mask) return false;
  }
  /* relaxed: the store to write_pos publishes it. */
  atomic_store_explicit(&ring->cells[end->write_pos & end->mask], value, memory_order_relaxed);
  STEP("push: cell");
  end->write_pos++;
  /* sync filled-R -> filled-A: the cell, and the slot it names, are written before it shows. */
  atomic_store_explicit(&ring->write_pos, end->write_pos, memory_order_release);
  STEP("push: write_pos");
  return true;
}

/* True if a pop would succeed. Only the reader; wait-free. */
static inline bool ring_has_value(struct ring_reader *end) {
  if (end->read_pos == end->write_pos_seen) {
    /* sync filled-A <- filled-R: cells before write_pos, and their slots, are visible from here. */
    end->write_pos_seen = atomic_load_explicit(&end->ring->write_pos, memory_order_acquire);
  }
  return end->read_pos != end->write_pos_seen;
}

/*
 * True if the writer's position, as it was seen last, is impossible: it is further ahead than there
 * are cells, so the cells hold nonsense. Only the reader; wait-free.
 */
static inline bool ring_is_overrun(const struct ring_reader *end) {
  return end->write_pos_seen - end->read_pos > end->mask + 1;
}

/* Take the oldest value. Only the reader; wait-free. False: empty, *value untouched. */
static inline bool ring_pop(struct ring_reader *end, uint32_t *value) {
  if (!ring_has_value(end)) return false;
  _Atomic uint32_t *cell = &end->ring->cells[end->read_pos & end->mask];
  /* relaxed: published by write_pos; a broken writer may change it, so it is loaded once. */
  *value = atomic_load_explicit(cell, memory_order_relaxed);
  READ_OUT(cell, sizeof *cell);
  STEP("pop: cell read");
  end->read_pos++;
  /* sync emptied-R -> emptied-A: the cell was read before the writer may use it again. */
  atomic_store_explicit(&end->ring->read_pos, end->read_pos, memory_order_release);
  STEP("pop: read_pos");
  return true;
}

/* How many values wait, for the reader: a lower bound by the time it is used. */
static inline uint32_t ring_length(struct ring_reader *end) {
  /* relaxed: a count for people. */
  return atomic_load_explicit(&end->ring->write_pos, memory_order_relaxed) - end->read_pos;
}

/* How many values wait, for the writer: an upper bound by the time it is used. */
static inline uint32_t ring_backlog(struct ring_writer *end) {
  /* relaxed: a count, and nothing is read because of it. */
  return end->write_pos - atomic_load_explicit(&end->ring->read_pos, memory_order_relaxed);
}

#endif

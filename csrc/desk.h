/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_DESK_H
#define SHMLOADER_DESK_H

#include "segment.h"

/* The worker's end of a segment, in its private memory. desk.c opens with its part of a slot. */
struct desk {
  uint8_t *base;
  int fd;
  struct geometry geometry;
  uint32_t worker;
  struct worker_block *block;
  struct worker_view view;  /* what stands in the segment after the next write */
  struct slot_times times;  /* of the batch in hand */
  struct ring_reader task_ring;
  struct ring_writer ready_ring;
  uint64_t next_ticket; /* the lowest that it may still take */
  uint64_t left_out;    /* samples that the batch in hand is smaller by */
  struct looks looks;   /* at its doorbell */
};

/* Sit down at a worker's rings. The segment is mapped at base; pages are added to fd. */
void desk_init(struct desk *desk, uint8_t *base, int fd, const struct geometry *geometry,
               uint32_t worker);

/* Take the cell of the next order. Worker only; wait-free. False: there is none. */
bool desk_take(struct desk *desk, uint32_t *cell);

/*
 * Check the order in the slot that a cell names, and copy it to *order. Worker only; wait-free.
 * NULL: the slot is this worker's until its answer. Otherwise the check that failed: no byte of the
 * slot was looked at, and none may be written.
 */
const char *desk_accept(struct desk *desk, uint32_t slot, struct slot_order *order);

/* True from the moment the trainer wants all workers to leave. Any process; wait-free. */
bool desk_stopping(struct desk *desk);

/* Show viewers what this worker does from now on. Worker only; wait-free. */
void desk_show(struct desk *desk, enum worker_state state, uint64_t now);

/* A batch is begun in the slot of an order. Worker only; wait-free. */
void desk_begin_batch(struct desk *desk, uint64_t ticket, uint64_t taken_ns);

/*
 * A sample of the batch in hand is about to be fetched. Worker only; wait-free.
 * index: of the dataset, or VIEW_UNKNOWN_INDEX; samples: how many the batch will have, or 0.
 */
void desk_begin_sample(struct desk *desk, uint32_t position, uint32_t samples, int64_t index);

/* All samples are there: collating begins, unless it began before. Worker only; wait-free. */
void desk_begin_collating(struct desk *desk, uint64_t blocked_ns);

/* The answer is written: note its times in the slot, and count them. Worker only; wait-free. */
void desk_end_batch(struct desk *desk, uint32_t slot, uint64_t blocked_ns, uint64_t bytes);

/* Publish the answer that stands in the slot's header, and ring. Worker only; wait-free. */
bool desk_tell(struct desk *desk, enum verb verb, uint32_t slot);

#endif

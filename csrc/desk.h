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
  struct ring_reader task_ring;
  struct ring_writer ready_ring;
  uint64_t next_ticket; /* the lowest that it may still take */
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

/* Publish the answer that stands in the slot's header, and ring. Worker only; wait-free. */
bool desk_tell(struct desk *desk, enum verb verb, uint32_t slot);

/* True if the trainer has taken all cells that were told. The worker only; wait-free. */
bool desk_is_heard(struct desk *desk);

#endif

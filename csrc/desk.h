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
};

/* Sit down at a worker's rings. The segment is mapped at base; pages are added to fd. */
void desk_init(struct desk *desk, uint8_t *base, int fd, const struct geometry *geometry,
               uint32_t worker);

/* Take the cell of the next order. Worker only; wait-free. False: there is none. */
bool desk_take(struct desk *desk, uint32_t *cell);

/* True from the moment the trainer wants all workers to leave. Any process; wait-free. */
bool desk_stopping(struct desk *desk);

/* Publish the answer that stands in the slot's header, and ring. Worker only; wait-free. */
bool desk_tell(struct desk *desk, enum verb verb, uint32_t slot);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The worker's end of a segment: its part of a slot's way, between PLACED and READY.
 *
 *   take: pop a cell; read the order and the request; write the batch, its layout, the answer;
 *   tell: push the slot's cell on the ready ring and ring the trainer.
 *
 * Key invariant: between the pop and the push the slot is this worker's, its payload and its half
 * of the header; before and after, this worker writes nothing there. All the rest of the segment
 * that it writes is its own for good: the ends of its two rings, its doorbell's parked, its clock.
 *
 * A desk is not trusted. The trainer looks only at slots that this worker holds according to the
 * ledger, and at copies of what stands there.
 *
 * Full ring. A ready ring has a cell for every slot and for the control values, so an answer finds
 * room, unless user code gave up wants: each of them took a cell. Then the caller waits for the
 * trainer to read on and tells again.
 *
 * Death at any instruction leaves the slot PLACED and the rings in any state; the trainer reaps the
 * worker, reclaims its slots and empties its rings (ledger.c). The next worker starts with
 * desk_init, at empty rings, and learns nothing from the one before.
 */

#include "desk.h"

void desk_init(struct desk *desk, uint8_t *base, int fd, const struct geometry *geometry,
               uint32_t worker) {
  *desk = (struct desk){.base = base, .fd = fd, .geometry = *geometry, .worker = worker};
  desk->block = segment_worker(base, geometry, worker);
  struct ring *tasks = segment_task_ring(base, geometry, worker);
  struct ring *ready = segment_ready_ring(base, geometry, worker);
  desk->task_ring = ring_open_reader(tasks, geometry->ring_capacity);
  desk->ready_ring = ring_open_writer(ready, geometry->ring_capacity);
}

bool desk_take(struct desk *desk, uint32_t *cell) { return ring_pop(&desk->task_ring, cell); }

bool desk_stopping(struct desk *desk) {
  /* relaxed: nothing is read because of it. */
  return atomic_load_explicit(&segment_control(desk->base)->stopping, memory_order_relaxed) != 0;
}

bool desk_tell(struct desk *desk, enum verb verb, uint32_t slot) {
  if (!ring_push(&desk->ready_ring, cell_make(verb, slot))) return false;
  doorbell_ring(&segment_control(desk->base)->doorbell);
  return true;
}

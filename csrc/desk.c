/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The worker's end of a segment: its part of a slot's way, between PLACED and READY.
 *
 *   take: pop a cell; accept its order; read the request; write the batch, its layout, the answer;
 *   tell: push the slot's cell on the ready ring and ring the trainer.
 *
 * Key invariant: between the pop and the push the slot is this worker's, its payload and its half
 * of the header; before and after, this worker writes nothing there. All the rest of the segment
 * that it writes is its own for good: the ends of its two rings, its doorbell's parked, its clock
 * and its view.
 *
 * Neither end trusts the other. The trainer looks only at slots that this worker holds according to
 * the ledger, and at copies of what stands there. The worker takes only an order that is in force
 * for it, whose ticket is higher than all that it took before, because its orders come in rising
 * tickets for as long as it lives. So a cell that was overwritten, or stands in its ring twice,
 * leads it to no slot that is free, another worker's, or in the hands of the user: it refuses.
 *
 * Full ring. A ready ring has a cell for every slot and for the control values, so an answer finds
 * room, unless user code gave up wants: each of them took a cell. Then the caller waits for the
 * trainer to read on and tells again.
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
  OWNERS_ENTER(base, geometry, worker);
}

bool desk_take(struct desk *desk, uint32_t *cell) { return ring_pop(&desk->task_ring, cell); }

/* Returns what is wrong with a request's kind and length, or NULL. */
static const char *fault_in_request(const struct slot_order *order) {
  uint64_t numbers = order->mode & ORDER_NUMBERED ? ORDER_NUMBERS_BYTES : 0;
  uint64_t bytes = order->request_bytes - numbers;
  if (order->request_bytes < numbers) return "a part of its numbers";
  switch (order->request_kind) {
    case REQUEST_INDICES: return bytes % sizeof(int64_t) == 0 ? NULL : "a part of an index";
    case REQUEST_INDEX:
    case REQUEST_NONES: return bytes == sizeof(int64_t) ? NULL : "not one number";
    case REQUEST_PICKLED:
    case REQUEST_RECORD: return NULL;
    default: return "unknown kind of request";
  }
}

/* Returns the check that the copy of an order fails; NULL: it may be followed. */
static const char *fault_in(const struct desk *desk, uint64_t mark,
                            const struct slot_order *order) {
  /* relaxed: a private copy. */
  uint64_t grant_bytes = atomic_load_explicit(&order->grant_bytes, memory_order_relaxed);
  if (mark != order_mark(desk->worker, order->ticket)) return "the slot is not this worker's";
  if (order->ticket < desk->next_ticket) return "its order was taken before";
  if (grant_bytes > desk->geometry.range_bytes) return "a grant beyond the range";
  if (order->pages_bytes > grant_bytes) return "more pages than granted";
  if (order->pages_bytes % desk->geometry.page_bytes != 0) return "a part of a page";
  if (order->request_bytes > order->pages_bytes) return "a request beyond the slot's pages";
  if (order->mode & ~ORDER_MODES) return "unknown mode";
  return fault_in_request(order);
}

const char *desk_accept(struct desk *desk, uint32_t slot, struct slot_order *order) {
  if (slot >= desk->geometry.ranges) return "there is no such slot";
  struct slot_header *header = segment_header(desk->base, &desk->geometry, slot);
  uint64_t mark = order_read(&header->order, order);
  const char *fault = fault_in(desk, mark, order);
  READ_OUT(&header->order, offsetof(struct slot_order, grant_bytes));
  if (fault == NULL) desk->next_ticket = order->ticket + 1;
  return fault;
}

bool desk_stopping(struct desk *desk) {
  /* relaxed: nothing is read because of it. */
  return atomic_load_explicit(&segment_control(desk->base)->stopping, memory_order_relaxed) != 0;
}

void desk_show(struct desk *desk, enum worker_state state, uint64_t now) {
  struct worker_view *view = &desk->block->view;
  desk->view.state = (uint32_t)state;
  desk->view.since_ns = now;
  view_write(&view->sequence, &desk->view.state, VIEW_BYTES(view));
}

void desk_begin_batch(struct desk *desk, uint64_t ticket, uint64_t taken_ns) {
  desk->times = (struct slot_times){.taken_ns = taken_ns,
                                    .longest_index = VIEW_UNKNOWN_INDEX,
                                    .longest_position = VIEW_WHOLE_BATCH};
  desk->view.ticket = ticket;
  desk->view.index = VIEW_UNKNOWN_INDEX;
  desk->view.position = VIEW_WHOLE_BATCH;
  desk->view.samples = 0;
  desk->view.sample_since_ns = taken_ns;
  desk_show(desk, WORKER_FETCHING, taken_ns);
}

/* The sample that was fetched until now may be the longest so far. */
static void end_sample(struct desk *desk, uint64_t now) {
  const struct worker_view *view = &desk->view;
  struct slot_times *times = &desk->times;
  uint64_t lasted_ns = now > view->sample_since_ns ? now - view->sample_since_ns : 0;
  if (view->position == VIEW_WHOLE_BATCH) return;
  if (times->longest_position != VIEW_WHOLE_BATCH && lasted_ns <= times->longest_ns) return;
  times->longest_ns = lasted_ns;
  times->longest_index = view->index;
  times->longest_position = view->position;
}

void desk_begin_sample(struct desk *desk, uint32_t position, uint32_t samples, int64_t index) {
  struct worker_view *view = &desk->block->view;
  uint64_t now = (uint64_t)platform_coarse_ns();
  end_sample(desk, now);
  desk->view.index = index;
  desk->view.position = position;
  desk->view.samples = desk->times.samples = samples;
  desk->view.sample_since_ns = now;
  view_write(&view->sequence, &desk->view.state, VIEW_BYTES(view));
}

void desk_begin_collating(struct desk *desk, uint64_t blocked_ns) {
  if (desk->times.fetched_ns != 0) return;
  uint64_t now = (uint64_t)platform_now_ns();
  end_sample(desk, (uint64_t)platform_coarse_ns());
  desk->times.fetched_ns = now;
  desk->times.blocked_fetching_ns = blocked_ns;
  desk->view.position = VIEW_WHOLE_BATCH;
  desk->view.index = VIEW_UNKNOWN_INDEX;
  desk_show(desk, WORKER_COLLATING, now);
}

void desk_end_batch(struct desk *desk, uint32_t slot, uint64_t blocked_ns, uint64_t bytes) {
  struct slot_times *times = &desk->times;
  desk_begin_collating(desk, blocked_ns);
  uint64_t now = (uint64_t)platform_now_ns();
  times->written_ns = now;
  times->blocked_ns = blocked_ns;
  void *to = &segment_header(desk->base, &desk->geometry, slot)->times;
  STEP_WORDS("times: half", to, times, sizeof *times);
  STEP("times: written");
  uint64_t fetching_ns = times->fetched_ns - times->taken_ns - times->blocked_fetching_ns;
  uint64_t collating_ns = now - times->fetched_ns - (blocked_ns - times->blocked_fetching_ns);
  clock_add_batch(&desk->block->clock, fetching_ns, collating_ns, blocked_ns, bytes,
                  desk->left_out);
  desk->left_out = 0;
}

bool desk_tell(struct desk *desk, enum verb verb, uint32_t slot) {
  if (!ring_push(&desk->ready_ring, cell_make(verb, slot))) return false;
  doorbell_ring(&segment_control(desk->base)->doorbell);
  return true;
}

/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Which worker gets the next request.
 *
 * A client may leave that to the moment at which a request is placed. Then it goes to the freest of
 * the workers that have sat down: one that is still starting, or slow, delays no other. So workers
 * may come and go while requests wait, and there may be more seats than workers.
 *
 * Key invariant: a worker says that it has sat down by its bare pid in its view, and then rings;
 * before that, in the user's init function, VIEW_STARTING is in it, for viewers alone. The trainer
 * arms its doorbell, and then looks at the views of those that it misses: it is rung, or it
 * sees the pid. Nothing but this choice depends on what stands there.
 *
 * Death of a worker in its seat leaves its pid, until the trainer has reaped it and empties the
 * seat. What it was asked is counted until then.
 */

#include "seats.h"

static struct worker_view *view_of(struct ledger *ledger, uint32_t worker) {
  return &segment_worker(ledger->base, &ledger->geometry, worker)->view;
}

bool seats_is_taken(struct ledger *ledger, uint32_t worker) {
  struct seat *seat = &ledger->seats[worker];
  /* Seen once: the worker writes that line for each sample, which makes each look a cache miss. */
  if (!seat->is_taken) {
    uint64_t pid = words_load(&view_of(ledger, worker)->pid);
    seat->is_taken = pid != 0 && pid < VIEW_STARTING;
  }
  return seat->is_taken;
}

uint32_t seats_load(struct ledger *ledger, uint32_t worker) {
  uint32_t placed = ledger->seats[worker].placed, told = ring_length(&ledger->ready_rings[worker]);
  return placed > told ? placed - told : 0; /* what it has told may be no answer but a want */
}

void seats_open(struct ledger *ledger, uint32_t worker, bool is_open) {
  ledger->seats[worker].is_open = is_open;
}

static uint32_t count_missing(struct ledger *ledger) {
  uint32_t missing = 0;
  for (uint32_t worker = 0; worker < ledger->geometry.workers; worker++) {
    missing += ledger->seats[worker].is_open && !seats_is_taken(ledger, worker);
  }
  return missing;
}

int64_t seats_freest(struct ledger *ledger, uint32_t most) {
  uint32_t least = most;
  int64_t freest = -1;
  ledger->missing = count_missing(ledger);
  for (uint32_t worker = 0; worker < ledger->geometry.workers && least > 0; worker++) {
    if (!ledger->seats[worker].is_open || !seats_is_taken(ledger, worker)) continue;
    uint32_t load = seats_load(ledger, worker);
    if (load >= least) continue;
    least = load;
    freest = worker;
  }
  return freest;
}

bool seats_have_news(struct ledger *ledger) {
  return ledger->missing != 0 && count_missing(ledger) != ledger->missing;
}

void seats_empty(struct ledger *ledger, uint32_t worker) {
  uint64_t no_pid = 0;
  ledger->seats[worker].is_taken = false;
  words_write(&view_of(ledger, worker)->pid, &no_pid, sizeof no_pid);
}

void seats_share(struct ledger *ledger, uint32_t workers) {
  if (ledger_is_copy(ledger)) return;
  /* relaxed: a worker that reads it late adds a little more, or less, at once. */
  atomic_store_explicit(&segment_control(ledger->base)->sharers, workers, memory_order_relaxed);
  STEP("seats: shared");
}

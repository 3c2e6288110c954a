/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The moves of a slot, as the trainer knows them: README.md has them as a table.
 *
 * Key invariant: the ledger is private to the trainer, and only the trainer moves a slot. What
 * workers write are messages; a READY cell counts only if the ledger says that this worker holds
 * this slot for this ticket. The header is copied out, then checked, then used, so a worker that
 * goes on writing changes nothing.
 *
 * Release. The last alias may die on any thread, so that thread only pushes the slot onto a stack
 * (Treiber's); the trainer takes the whole stack at once, which leaves no room for the ABA problem.
 *
 * Devices. A batch whose slot is page-locked may be dropped as soon as a copy of it was issued. So
 * the slot of one that was leased for devices is FENCED when its last alias is gone; pinned.c says
 * what ends that.
 *
 * Close. When the trainer places nothing more, it exchanges the stack's head for RELEASED_CLOSED: a
 * slot was pushed before, and the trainer takes it, or its thread finds the mark and gives the
 * slot's pages back itself. One word decides, so each slot is given back by exactly one thread, and
 * none is missed. Which slots those are was noted before, as for leases that outlive their epoch.
 * Aliases alive at a later fork may be alive in the child, and no thread would see their end there:
 * after a fork, pages stay.
 *
 * Death of a worker at any instruction leaves its slots PLACED, its rings and its half of their
 * headers in any state; ledger_reclaim frees them once it is reaped and empties the rings, so that
 * nothing it said can be taken for the answer of the worker that sits there next. budget.c says
 * which pages it may have added, and what becomes of them.
 */

#include "ledger.h"

#include <stdlib.h>

#include "budget.h"
#include "children.h"
#include "copy.h"
#include "debug/canary.h"
#include "debug/guard.h"
#include "extent.h"
#include "log.h"
#include "seats.h"

static struct slot_order *order_in(struct ledger *ledger, uint32_t slot) {
  return &segment_header(ledger->base, &ledger->geometry, slot)->order;
}

/* True if the slot exists and is in this state. */
static bool is_in(const struct ledger *ledger, uint32_t slot, enum slot_state state) {
  return slot < ledger->geometry.ranges && ledger->entries[slot].state == (uint32_t)state;
}

static uint32_t count_in_use(const struct ledger *ledger) {
  const uint32_t *counts = ledger->counts;
  return counts[SLOT_FREE] + counts[SLOT_PLACED] + counts[SLOT_READY] + counts[SLOT_LEASED] +
         counts[SLOT_FENCED];
}

/* True if a spare may be used for a slot that comes back: the others are for retired ones. */
static bool has_spare_to_lend(const struct ledger *ledger) {
  return ledger->counts[SLOT_SPARE] > ledger->spares / POLICY_RETIRED_PART;
}

/* Let a spare be FREE, if fewer slots are in use than shall be, and there is one. */
static void use_spare(struct ledger *ledger) {
  if (ledger->counts[SLOT_SPARE] == 0 || count_in_use(ledger) >= ledger->slots) return;
  uint32_t slot = 0;
  while (ledger->entries[slot].state != SLOT_SPARE) slot++;
  budget_enter(ledger, budget_leave(ledger, slot), SLOT_FREE);
  ledger->free_slots[ledger->free_count++] = slot;
}

static void move_to_free(struct ledger *ledger, uint32_t slot) {
  struct ledger_entry *entry = budget_leave(ledger, slot);
  if (entry->state == SLOT_PLACED) {
    order_end(order_in(ledger, slot));
    budget_retake_unseen(ledger, slot);
  }
  budget_set_want(ledger, entry, 0, 0);
  if (entry->children > 0) {
    budget_enter(ledger, entry, SLOT_FORKED);
    if (has_spare_to_lend(ledger)) use_spare(ledger);
  } else if (entry->retire) {
    budget_enter(ledger, entry, SLOT_RETIRED);
    use_spare(ledger);
  } else if (count_in_use(ledger) >= ledger->slots) {
    /* A spare has taken its place while a child could read it. */
    budget_enter(ledger, entry, SLOT_SPARE);
    budget_retake(ledger, slot, 0);
  } else {
    budget_enter(ledger, entry, SLOT_FREE);
    ledger->free_slots[ledger->free_count++] = slot;
  }
  STEP("free: done");
}

static void make_free(struct ledger *ledger, uint32_t slot) {
  if (ledger->guard != NULL) guard_free(ledger, slot);
  move_to_free(ledger, slot);
  budget_shed(ledger);
}

/* Note a lease that ended after some more batches than there are slots, and not very many more. */
static void note_comeback(struct ledger *ledger, uint32_t slot) {
  uint64_t batches = ledger->last_ticket - ledger->entries[slot].ticket;
  uint32_t slots = count_in_use(ledger);
  if (batches >= slots && batches < POLICY_LATE_ROUNDS * slots) ledger->comebacks++;
}

/* The end of its lease gave this slot's pages back: count them no more. */
static void note_emptied(struct ledger *ledger, uint32_t slot) {
  struct ledger_entry *entry = budget_leave(ledger, slot);
  entry->pages_bytes = 0;
  entry->was_emptied = false;
  budget_enter(ledger, entry, SLOT_LEASED);
}

/* No alias is left here, but a copy to a device that was issued before may still read the slot. */
static void make_fenced(struct ledger *ledger, uint32_t slot) {
  struct ledger_entry *entry = budget_leave(ledger, slot);
  entry->is_for_devices = false;
  entry->fence = ledger->fences.next;
  ledger->fences.uncovered++;
  budget_enter(ledger, entry, SLOT_FENCED);
}

/* Free all slots of a stack of released ones that was taken whole. */
static void free_released(struct ledger *ledger, uint32_t head) {
  while (head != 0) {
    uint32_t slot = head - 1;
    /* relaxed: published by the exchange that took the stack. */
    head = atomic_load_explicit(&ledger->entries[slot].next_released, memory_order_relaxed);
    if (!is_in(ledger, slot, SLOT_LEASED)) continue;
    if (ledger->entries[slot].was_emptied) note_emptied(ledger, slot);
    note_comeback(ledger, slot);
    log_release(ledger, slot);
    if (ledger->entries[slot].is_for_devices) make_fenced(ledger, slot);
    else make_free(ledger, slot);
  }
}

/* How often this process was about to be copied. */
static _Atomic uint32_t forks;

static uint32_t count_forks(void) {
  /* relaxed: a fork stops no thread, but no thread passes its system call unordered. */
  return atomic_load_explicit(&forks, memory_order_relaxed);
}

void ledger_note_fork(void) {
  /* relaxed: as above. */
  atomic_fetch_add_explicit(&forks, 1, memory_order_relaxed);
}

/* The batch has outlived its epoch: its pages go now, if no child may read them. */
static void empty_early(struct ledger *ledger, uint32_t slot) {
  struct ledger_entry *entry = &ledger->entries[slot];
  /* relaxed: pages_bytes is older than the lease, and was_emptied goes with the push. */
  uint32_t outlives = atomic_load_explicit(&entry->outlives, memory_order_relaxed);
  if (outlives == 0 || outlives != count_forks() + 1 || ledger_is_copy(ledger)) return;
  /* relaxed: set before the lease got its aliases; unset late, the pages go with the segment. */
  if (atomic_load_explicit(&entry->locked_bytes, memory_order_relaxed)) return;
  STEP("return: begun");
  uint64_t offset = segment_slot_offset(&ledger->geometry, slot);
  entry->was_emptied = platform_punch(ledger->fd, offset, entry->pages_bytes) == 0;
  STEP("return: punched");
}

/* Push a slot whose last alias died. Any thread. False: the stack was closed. */
static bool push_released(struct ledger *ledger, uint32_t slot) {
  struct ledger_entry *entry = &ledger->entries[slot];
  /* sync closed-A <- closed-R: what was noted of the slot is visible, if the stack is closed. */
  uint32_t head = atomic_load_explicit(&ledger->released, memory_order_acquire);
  while (head != RELEASED_CLOSED) {
    /* relaxed: read by the trainer only after the exchange below has published it. */
    atomic_store_explicit(&entry->next_released, head, memory_order_relaxed);
    /* sync released-R -> released-A: the aliases' uses and next_released are visible first. */
    /* sync closed-A <- closed-R: as above, for the head that a failed exchange returns. */
    if (atomic_compare_exchange_weak_explicit(&ledger->released, &head, slot + 1,
                                              memory_order_release, memory_order_acquire)) {
      return true;
    }
  }
  return false;
}

static void slot_lease_end(struct lease *lease) {
  struct ledger *ledger = lease->owner;
  uint32_t slot = lease->slot;
  if (ledger->guard != NULL) guard_release(ledger, slot);
  ledger->entries[slot].released_ns = (uint64_t)platform_now_ns();
  empty_early(ledger, slot);
  if (push_released(ledger, slot)) STEP("release: stacked");
  /* The ledger may have been closed after the first look; pages that stay go with the segment. */
  else if (!ledger->entries[slot].was_emptied) empty_early(ledger, slot);
  ledger_unref(ledger);
}

/* Empty the rings between the trainer and a worker that has not started, or was reaped. */
static void open_rings(struct ledger *ledger, uint32_t worker) {
  const struct geometry *geometry = &ledger->geometry;
  struct ring *tasks = segment_task_ring(ledger->base, geometry, worker);
  struct ring *ready = segment_ready_ring(ledger->base, geometry, worker);
  ring_init(tasks, 0);
  ring_init(ready, 0);
  ledger->task_rings[worker] = ring_open_writer(tasks, geometry->ring_capacity);
  ledger->ready_rings[worker] = ring_open_reader(ready, geometry->ring_capacity);
  seats_empty(ledger, worker);
}

static void fill_ledger(struct ledger *ledger, uint32_t slots) {
  uint32_t ranges = ledger->geometry.ranges;
  for (uint32_t slot = 0; slot < ranges; slot++) {
    struct ledger_entry *entry = &ledger->entries[slot];
    entry->lease.slot = slot;
    entry->lease.owner = ledger;
    entry->lease.end = slot_lease_end;
    entry->state = slot < slots ? SLOT_FREE : SLOT_SPARE;
    ledger->counts[entry->state]++;
  }
  /* The lowest slots lie on top of the stack. */
  for (uint32_t slot = 0; slot < slots; slot++) ledger->free_slots[slot] = slots - 1 - slot;
  ledger->free_count = slots;
  ledger->slots = slots;
  ledger->spares = ranges - slots;
}

static void free_ledger(struct ledger *ledger) {
  free(ledger->fences.ring);
  free(ledger->seats);
  free(ledger->free_slots);
  free(ledger->ready_rings);
  free(ledger->task_rings);
  free(ledger->entries);
  free(ledger);
}

struct ledger *ledger_new(uint8_t *base, int fd, const struct geometry *geometry,
                          uint32_t slots, uint64_t ring_bytes_limit) {
  if (slots == 0 || slots > geometry->ranges) return NULL;
  struct ledger *ledger = calloc(1, sizeof *ledger);
  if (ledger == NULL) return NULL;
  ledger->base = base;
  ledger->fd = fd;
  ledger->geometry = *geometry;
  ledger->generation = generation_now();
  ledger->file = platform_file_of(fd);
  ledger->ring_bytes = ring_bytes_limit;
  ledger->slack_bytes = UINT64_MAX;
  ledger->share_bytes = ring_bytes_limit / slots / geometry->page_bytes * geometry->page_bytes;
  ledger->entries = aligned_alloc(CACHE_LINE, geometry->ranges * sizeof *ledger->entries);
  ledger->task_rings = calloc(geometry->workers, sizeof *ledger->task_rings);
  ledger->ready_rings = calloc(geometry->workers, sizeof *ledger->ready_rings);
  ledger->free_slots = calloc(geometry->ranges, sizeof *ledger->free_slots);
  ledger->seats = calloc(geometry->workers, sizeof *ledger->seats);
  if (!ledger->entries || !ledger->task_rings || !ledger->ready_rings || !ledger->free_slots ||
      !ledger->seats || !(ledger->extent = extent_enter(base, geometry->total_bytes))) {
    free_ledger(ledger);
    return NULL;
  }
  memset(ledger->entries, 0, geometry->ranges * sizeof *ledger->entries);
  /* relaxed: no other thread knows the ledger yet. */
  atomic_store_explicit(&ledger->references, 1, memory_order_relaxed);
  fill_ledger(ledger, slots);
  for (uint32_t worker = 0; worker < geometry->workers; worker++) {
    open_rings(ledger, worker);
    seats_open(ledger, worker, true);
  }
  OWNERS_ENTER(base, geometry, TRAINERS_SEAT);
  return ledger;
}

void ledger_unref(struct ledger *ledger) {
  /* sync reference-R -> reference-A: this holder's last use comes before the unmapping. */
  if (atomic_fetch_sub_explicit(&ledger->references, 1, memory_order_release) != 1) return;
  /* sync reference-A <- reference-R: all other holders are done. */
  (void)atomic_load_explicit(&ledger->references, memory_order_acquire);
  STEP("unmap: begun");
  OWNERS_LEAVE(ledger->base);
  extent_leave(ledger->extent);
  if (ledger->guard != NULL) guard_end(ledger->guard);
  munmap(ledger->base, ledger->geometry.total_bytes);
  STEP("unmap: done");
  platform_close(ledger->fd, ledger->file);
  free_ledger(ledger);
}

/* A FREE slot: the one freed last; with a guard the one freed first, to catch late uses. */
static uint32_t take_free(struct ledger *ledger) {
  if (ledger->guard != NULL) guard_place(ledger);
  return ledger->free_slots[--ledger->free_count];
}

/*
 * Make a slot that take_free has returned PLACED, with pages that exist for its first bytes.
 * 0, or -errno: it is FREE again.
 */
static int make_placed(struct ledger *ledger, uint32_t slot, uint32_t worker, uint64_t ticket,
                       uint64_t grant_bytes, uint64_t pages_bytes) {
  int error = budget_need(ledger, slot, pages_bytes);
  if (error != 0) {
    ledger->free_slots[ledger->free_count++] = slot;
    return error;
  }
  struct ledger_entry *entry = budget_leave(ledger, slot);
  entry->worker = worker;
  entry->ticket = ledger->last_ticket = ticket;
  entry->placed_ns = (uint64_t)platform_now_ns();
  entry->logged = 0;
  entry->record_bytes = 0;
  entry->grant_bytes = max_u64(grant_bytes, entry->pages_bytes);
  budget_enter(ledger, entry, SLOT_PLACED);
  return 0;
}

static void write_request(struct ledger *ledger, uint32_t slot, enum request_kind kind,
                          const void *request, uint64_t bytes) {
  uint8_t *start = ledger->base + segment_slot_offset(&ledger->geometry, slot);
  if (ledger->guard != NULL) guard_open(ledger, slot, bytes);
  if (kind == REQUEST_RECORD) {
    const struct record_writer *writer = request;
    writer->write(writer->record, start, bytes);
  } else {
    STEP_COPY("order: half a request", start, request, bytes);
  }
  STEP("order: request");
  if (ledger->guard != NULL) guard_close(ledger, slot);
}

static uint64_t expected_bytes(const struct ledger *ledger) {
  return ledger->expect_bytes != 0 ? ledger->expect_bytes : ledger->demand.ahead_bytes;
}

int64_t ledger_place(struct ledger *ledger, uint32_t worker, uint64_t ticket,
                     enum request_kind kind, const void *request, uint64_t bytes, uint32_t mode) {
  uint64_t request_pages = round_up(bytes, ledger->geometry.page_bytes);
  if (ledger_is_copy(ledger)) return -EPERM;
  if (worker >= ledger->geometry.workers) return -EINVAL;
  if (kind < REQUEST_INDICES || kind > REQUEST_RECORD) return -EINVAL;
  if (request_pages > ledger->geometry.range_bytes) return -E2BIG;
  if (ledger->free_count == 0) return -EAGAIN;
  uint32_t slot = take_free(ledger);
  struct ledger_entry *entry = &ledger->entries[slot];
  uint64_t grant = budget_standing_grant(ledger, slot, request_pages);
  if (entry->pages_bytes > grant) budget_retake(ledger, slot, grant);
  int error = make_placed(ledger, slot, worker, ticket, grant, request_pages);
  if (error != 0) return error;
  entry->record_bytes = kind == REQUEST_RECORD ? bytes : 0;

  const struct slot_order draft = {
      .ticket = ticket,
      .request_bytes = bytes,
      .pages_bytes = entry->pages_bytes,
      .expect_bytes = min_u64(expected_bytes(ledger), entry->grant_bytes),
      .request_kind = (uint32_t)kind,
      .mode = mode | (ledger->guard != NULL ? ORDER_GUARDED : 0),
      .grant_bytes = entry->grant_bytes,
  };
  struct slot_order *order = order_in(ledger, slot);
  STEP_WORDS("order: half", order, &draft, ORDER_BYTES);
  STEP("order: written");
  write_request(ledger, slot, kind, request, bytes);
  order_begin(order, order_mark(worker, ticket));

  /* The ring holds every slot and the control values besides: full means a forged read_pos. */
  if (!ring_push(&ledger->task_rings[worker], cell_make(VERB_PLACE, slot))) {
    make_free(ledger, slot);
    return -EPROTO;
  }
  doorbell_ring(&segment_worker(ledger->base, &ledger->geometry, worker)->doorbell);
  return slot;
}

bool ledger_tell(struct ledger *ledger, uint32_t worker, enum verb verb) {
  if (ledger_is_copy(ledger)) return false;
  if (worker >= ledger->geometry.workers) return false;
  if (!ring_push(&ledger->task_rings[worker], cell_make(verb, 0))) return false;
  doorbell_ring(&segment_worker(ledger->base, &ledger->geometry, worker)->doorbell);
  return true;
}

/* Returns the check that an answer's lengths fail in so many bytes, or NULL. */
static const char *fault_in_lengths(const struct slot_answer *answer, uint64_t bytes) {
  if (answer->payload_bytes > bytes) return "payload beyond the slot's pages";
  if (answer->layout_offset > bytes) return "layout starts beyond the slot's pages";
  uint64_t behind = bytes - answer->layout_offset;
  if (answer->layout_bytes > behind) return "layout ends beyond the slot's pages";
  if (answer->snapshot_bytes > behind - answer->layout_bytes) {
    return "snapshot ends beyond the slot's pages";
  }
  return NULL;
}

/* Returns the check that a slot's answer fails; NULL: the answer may be used. */
static const char *fault_in(const struct ledger *ledger, const struct ledger_entry *entry,
                            const struct slot_answer *answer) {
  uint64_t granted = entry->grant_bytes;
  if (answer->ticket != entry->ticket) return "the answer is for another ticket";
  if (answer->kind < ANSWER_BATCH || answer->kind > ANSWER_NOTHING) return "unknown answer kind";
  if (answer->pages_bytes > ledger->geometry.range_bytes) return "more pages than the range has";
  if (answer->pages_bytes > granted) return "more pages than granted";
  if (answer->pages_bytes % ledger->geometry.page_bytes != 0) return "a part of a page";
  return fault_in_lengths(answer, answer->pages_bytes);
}

/* Copy a slot's answer out: from here on its worker can change nothing that is used. */
static void read_answer(struct ledger *ledger, uint32_t slot) {
  struct slot_answer *copy = &ledger->entries[slot].answer;
  struct slot_answer *answer = &segment_header(ledger->base, &ledger->geometry, slot)->answer;
  words_read(copy, answer, sizeof *copy);
  READ_OUT(answer, sizeof *copy);
}

static void read_times(struct ledger *ledger, uint32_t slot) {
  struct slot_times *copy = &ledger->entries[slot].times;
  struct slot_times *times = &segment_header(ledger->base, &ledger->geometry, slot)->times;
  words_read(copy, times, sizeof *copy);
  READ_OUT(times, sizeof *copy);
}

/* The answer that was copied out counts from here on: PLACED -> READY. */
static void make_ready(struct ledger *ledger, uint32_t slot) {
  struct ledger_entry *entry = budget_leave(ledger, slot);
  entry->pages_bytes = max_u64(entry->pages_bytes, entry->answer.pages_bytes);
  entry->used_bytes = answer_end(&entry->answer);
  entry->retire = entry->retire || (entry->answer.flags & ANSWER_KEPT);
  budget_enter(ledger, entry, SLOT_READY);
}

static void note_demand(struct ledger *ledger, const struct ledger_entry *entry) {
  if (entry->answer.kind == ANSWER_BATCH) {
    demand_note(&ledger->demand, entry->used_bytes);
  }
  budget_note_demand(ledger);
}

static const char *accept_ready(struct ledger *ledger, uint32_t slot) {
  struct ledger_entry *entry = &ledger->entries[slot];
  read_answer(ledger, slot);
  const char *fault = fault_in(ledger, entry, &entry->answer);
  if (fault != NULL) return fault;
  if (ledger->guard != NULL) {
    guard_audit(ledger);
    fault = guard_fault(ledger, slot);
    if (fault != NULL) return fault;
  }
  read_times(ledger, slot);
  /* User code in the worker may have given up waiting, as with a timeout of its own. */
  budget_set_want(ledger, entry, 0, 0);
  make_ready(ledger, slot);
  order_end(order_in(ledger, slot));
  note_demand(ledger, entry);
  return NULL;
}

static const char *accept_want(struct ledger *ledger, uint32_t slot) {
  struct ledger_entry *entry = &ledger->entries[slot];
  read_answer(ledger, slot);
  if (entry->answer.ticket != entry->ticket) return "wants pages for another ticket";
  if (ledger->guard != NULL) guard_audit(ledger);
  uint64_t bytes = entry->answer.want_bytes;
  bool is_granted = bytes <= entry->grant_bytes;
  /* A worker that gave up waiting may ask for what it was granted since: no harm is done. */
  if (is_granted) budget_set_want(ledger, entry, entry->want_bytes, bytes);
  else budget_set_want(ledger, entry, bytes, entry->short_bytes);
  return NULL;
}

static const char *accept(struct ledger *ledger, uint32_t worker, uint32_t cell) {
  uint32_t slot = cell_slot(cell);
  if (cell_verb(cell) == VERB_RESUMED) return NULL;
  if (slot >= ledger->geometry.ranges) return "no such slot";
  const struct ledger_entry *entry = &ledger->entries[slot];
  if (entry->state != SLOT_PLACED || entry->worker != worker) return "not this worker's slot";
  if (cell_verb(cell) == VERB_READY) return accept_ready(ledger, slot);
  if (cell_verb(cell) == VERB_WANT) return accept_want(ledger, slot);
  return "unknown verb";
}

/* Pop the next cell of a ring that has one, unless its writer says it holds more than it can. */
static const char *accept_next(struct ledger *ledger, uint32_t worker, uint32_t *cell) {
  struct ring_reader *ring = &ledger->ready_rings[worker];
  if (ring_is_overrun(ring)) return "its ring holds more than it can";
  (void)ring_pop(ring, cell);
  return accept(ledger, worker, *cell);
}

bool ledger_receive(struct ledger *ledger, struct news *news) {
  if (ledger_is_copy(ledger)) return false;
  uint32_t workers = ledger->geometry.workers;
  for (uint32_t i = 0; i < workers; i++) {
    uint32_t worker = ledger->next_worker;
    uint32_t cell = 0;
    ledger->next_worker = worker + 1 < workers ? worker + 1 : 0;
    if (!ring_has_value(&ledger->ready_rings[worker])) continue;
    const char *broken = accept_next(ledger, worker, &cell);
    *news = (struct news){.worker = worker, .slot = cell_slot(cell), .broken = broken};
    news->verb = broken == NULL ? cell_verb(cell) : 0;
    return true;
  }
  return false;
}

/* Read bytes of a file that is as long. 0 or -errno. */
static int read_file(int fd, uint64_t offset, uint8_t *to, uint64_t bytes) {
  for (uint64_t done = 0; done < bytes;) {
    ssize_t got = pread(fd, to + done, bytes - done, (off_t)(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got < 0 ? -errno : -EIO;
    done += (uint64_t)got;
  }
  return 0;
}

/* Note what a slot was filled with, as if a worker had answered. */
static void note_filled(struct ledger *ledger, uint32_t slot, const struct slot_answer *answer) {
  struct ledger_entry *entry = &ledger->entries[slot];
  uint64_t now = (uint64_t)platform_now_ns();
  uint64_t bytes = answer_end(answer);
  uint8_t *start = ledger->base + segment_slot_offset(&ledger->geometry, slot);
  entry->answer = *answer;
  entry->answer.pages_bytes = entry->pages_bytes;
  entry->times = (struct slot_times){.taken_ns = entry->placed_ns,
                                     .fetched_ns = now,
                                     .written_ns = now,
                                     .longest_index = VIEW_UNKNOWN_INDEX,
                                     .longest_position = VIEW_WHOLE_BATCH};
  if (ledger->guard != NULL) {
    uint64_t canary = canary_bytes(bytes, entry->pages_bytes);
    guard_open(ledger, slot, bytes + canary);
    canary_write(start + bytes, canary, entry->ticket, slot);
    (void)guard_fault(ledger, slot);
  }
}

int64_t ledger_fill(struct ledger *ledger, uint64_t ticket, const struct slot_answer *answer,
                    const uint8_t *from, int fd, uint64_t offset) {
  if (ledger_is_copy(ledger)) return -EPERM;
  struct slot_answer copy = *answer;
  copy.ticket = ticket;
  copy.flags = 0;
  copy.snapshot_bytes = 0;
  if (copy.kind != ANSWER_BATCH && copy.kind != ANSWER_ERROR) return -EBADMSG;
  if (copy.layout_bytes == 0) return -EBADMSG;
  if (fault_in_lengths(&copy, ledger->geometry.range_bytes) != NULL) return -EBADMSG;
  uint64_t bytes = answer_end(&copy);
  uint64_t pages = round_up(bytes, ledger->geometry.page_bytes);
  if (pages > ledger->geometry.range_bytes) return -E2BIG;
  if (ledger->free_count == 0) return -EAGAIN;
  uint32_t slot = take_free(ledger);
  (void)budget_room(ledger, slot, pages);
  int error = make_placed(ledger, slot, 0, ticket, 0, pages);
  if (error != 0) return error;
  STEP("fill: taken");
  if (ledger->guard != NULL) guard_open(ledger, slot, bytes);
  uint8_t *start = ledger->base + segment_slot_offset(&ledger->geometry, slot);
  if (from != NULL) copy_bytes(start, from, bytes, bytes);
  else error = read_file(fd, offset, start, bytes);
  if (error != 0) {
    make_free(ledger, slot);
    return error;
  }
  STEP("fill: copied");
  note_filled(ledger, slot, &copy);
  make_ready(ledger, slot);
  STEP("fill: ready");
  note_demand(ledger, &ledger->entries[slot]);
  return slot;
}

bool ledger_has_news(struct ledger *ledger) {
  for (uint32_t worker = 0; worker < ledger->geometry.workers; worker++) {
    if (ring_has_value(&ledger->ready_rings[worker])) return true;
  }
  return seats_have_news(ledger);
}

uint8_t *ledger_open(struct ledger *ledger, uint32_t slot) {
  if (!is_in(ledger, slot, SLOT_READY)) return NULL;
  if (ledger->guard != NULL) guard_open_batch(ledger, slot);
  return ledger->base + segment_slot_offset(&ledger->geometry, slot);
}

struct lease *ledger_lease(struct ledger *ledger, uint32_t slot, uint32_t aliases) {
  if (!is_in(ledger, slot, SLOT_READY) || aliases == 0) return NULL;
  if (ledger->guard != NULL) guard_lease(ledger, slot);
  struct ledger_entry *entry = budget_leave(ledger, slot);
  budget_enter(ledger, entry, SLOT_LEASED);
  entry->leased_ns = (uint64_t)platform_now_ns();
  /* relaxed: no other thread has an alias yet. */
  atomic_store_explicit(&entry->outlives, 0, memory_order_relaxed);
  /* relaxed: the caller holds a reference, so the count cannot be zero. */
  atomic_fetch_add_explicit(&ledger->references, 1, memory_order_relaxed);
  lease_begin(&entry->lease, aliases);
  children_leased();
  STEP("lease: begun");
  return &entry->lease;
}

void ledger_end_fence(struct ledger *ledger, uint64_t number) {
  if (ledger_is_copy(ledger)) return;
  for (uint32_t slot = 0; slot < ledger->geometry.ranges; slot++) {
    if (is_in(ledger, slot, SLOT_FENCED) && ledger->entries[slot].fence == number) {
      make_free(ledger, slot);
    }
  }
}

bool ledger_free(struct ledger *ledger, uint32_t slot) {
  if (ledger_is_copy(ledger)) return false;
  if (!is_in(ledger, slot, SLOT_READY) && !is_in(ledger, slot, SLOT_PLACED)) return false;
  make_free(ledger, slot);
  return true;
}

void ledger_reclaim(struct ledger *ledger, uint32_t worker) {
  if (ledger_is_copy(ledger)) return;
  if (worker >= ledger->geometry.workers) return;
  for (uint32_t slot = 0; slot < ledger->geometry.ranges; slot++) {
    const struct ledger_entry *entry = &ledger->entries[slot];
    if (entry->state == SLOT_PLACED && entry->worker == worker) make_free(ledger, slot);
  }
  STEP("reclaim: slots freed");
  open_rings(ledger, worker);
}

void ledger_restart(struct ledger *ledger) {
  if (ledger_is_copy(ledger)) return;
  ledger_collect(ledger);
  for (uint32_t worker = 0; worker < ledger->geometry.workers; worker++) {
    ledger_reclaim(ledger, worker);
    seats_open(ledger, worker, true);
  }
  seats_share(ledger, 0);
  for (uint32_t slot = 0; slot < ledger->geometry.ranges; slot++) {
    if (ledger->entries[slot].state == SLOT_READY) make_free(ledger, slot);
  }
  ledger_stop(ledger, false);
}

void ledger_rest(struct ledger *ledger, bool is_final) {
  if (ledger_is_copy(ledger)) return;
  ledger_collect(ledger);
  uint64_t keep_bytes = is_final ? 0 : round_up(ledger->demand.keep_bytes, HUGE_BYTES);
  for (uint32_t i = 0; i < ledger->free_count; i++) {
    uint32_t slot = ledger->free_slots[i];
    if (ledger->entries[slot].pages_bytes > keep_bytes) budget_retake(ledger, slot, keep_bytes);
  }
}

void ledger_rest_leased(struct ledger *ledger, bool is_final) {
  if (ledger_is_copy(ledger)) return;
  bool goes = is_final || ledger->demand.keep_bytes == 0;
  for (uint32_t slot = 0; slot < ledger->geometry.ranges; slot++) {
    struct ledger_entry *entry = &ledger->entries[slot];
    if (entry->state != SLOT_LEASED) continue;
    bool is_ours = entry->children == 0 && !entry->retire;
    /* relaxed: the number says all; a lease that misses it leaves its pages to ledger_collect. */
    atomic_store_explicit(&entry->outlives, goes && is_ours ? count_forks() + 1 : 0,
                          memory_order_relaxed);
  }
}

bool ledger_grow(struct ledger *ledger) {
  if (ledger_is_copy(ledger)) return false;
  if (ledger->comebacks < POLICY_COMEBACKS_TO_GROW) return false;
  if (!has_spare_to_lend(ledger)) return false;
  ledger->comebacks = 0;
  ledger->slots++;
  use_spare(ledger);
  return true;
}

void ledger_close(struct ledger *ledger) {
  if (ledger_is_copy(ledger)) return;
  ledger_collect(ledger);
  /* relaxed: only the trainer, which asks, closes it. */
  if (atomic_load_explicit(&ledger->released, memory_order_relaxed) != RELEASED_CLOSED) {
    ledger_rest_leased(ledger, true);
    /* sync released-A <- released-R: as in ledger_collect, for the last time. */
    /* sync closed-R -> closed-A: what was noted is visible to threads that find it closed. */
    free_released(ledger, atomic_exchange_explicit(&ledger->released, RELEASED_CLOSED,
                                                   memory_order_acq_rel));
    STEP("close: closed");
    log_segment(ledger, SEGMENT_CLOSED);
  }
  budget_trim(ledger, UINT64_MAX);
}

void ledger_stop(struct ledger *ledger, bool stopping) {
  if (ledger_is_copy(ledger)) return;
  struct control_block *control = segment_control(ledger->base);
  STEP("stop: begun");
  /* relaxed: a worker that reads it late is woken by the doorbell or by its next look. */
  atomic_store_explicit(&control->stopping, stopping, memory_order_relaxed);
  STEP("stop: stopping");
  for (uint32_t worker = 0; stopping && worker < ledger->geometry.workers; worker++) {
    doorbell_ring(&segment_worker(ledger->base, &ledger->geometry, worker)->doorbell);
  }
}

void ledger_collect(struct ledger *ledger) {
  if (ledger_is_copy(ledger)) return;
  /* relaxed: most calls find nothing; the exchange orders the others. */
  uint32_t head = atomic_load_explicit(&ledger->released, memory_order_relaxed);
  if (head == 0 || head == RELEASED_CLOSED) return;
  /* sync released-A <- released-R: the aliases' last uses are over before the slot is reused. */
  head = atomic_exchange_explicit(&ledger->released, 0, memory_order_acquire);
  STEP("collect: taken");
  free_released(ledger, head);
}

bool ledger_grant(struct ledger *ledger, uint32_t slot, uint64_t grant_bytes) {
  if (ledger_is_copy(ledger)) return false;
  if (!is_in(ledger, slot, SLOT_PLACED)) return false;
  if (grant_bytes < ledger->entries[slot].grant_bytes) return false;
  if (grant_bytes > ledger->geometry.range_bytes) return false;
  if (ledger->guard != NULL) guard_audit(ledger);
  struct ledger_entry *entry = budget_leave(ledger, slot);
  entry->grant_bytes = grant_bytes;
  budget_enter(ledger, entry, SLOT_PLACED);
  budget_set_want(ledger, entry, 0, entry->short_bytes);
  struct slot_order *order = order_in(ledger, slot);
  STEP("grant: begun");
  /* sync granted-R -> granted-A: the worker fills pages only after the ledger counted them. */
  atomic_store_explicit(&order->grant_bytes, grant_bytes, memory_order_release);
  STEP("grant: grant_bytes");
  doorbell_ring(&segment_worker(ledger->base, &ledger->geometry, entry->worker)->doorbell);
  return true;
}

bool ledger_refuse(struct ledger *ledger, uint32_t slot) {
  if (ledger_is_copy(ledger)) return false;
  if (!is_in(ledger, slot, SLOT_PLACED)) return false;
  struct ledger_entry *entry = &ledger->entries[slot];
  uint64_t want_bytes = entry->want_bytes != 0 ? entry->want_bytes : entry->short_bytes;
  if (want_bytes == 0) return false;
  struct slot_order *order = order_in(ledger, slot);
  STEP("refuse: begun");
  /* sync refused-R -> refused-A: the want was read before the worker writes its answer over it. */
  atomic_store_explicit(&order->refused_bytes, want_bytes, memory_order_release);
  STEP("refuse: refused_bytes");
  budget_set_want(ledger, entry, 0, 0);
  doorbell_ring(&segment_worker(ledger->base, &ledger->geometry, entry->worker)->doorbell);
  return true;
}

uint64_t ledger_oldest(const struct ledger *ledger) {
  uint64_t oldest = UINT64_MAX;
  for (uint32_t slot = 0; slot < ledger->geometry.ranges; slot++) {
    const struct ledger_entry *entry = &ledger->entries[slot];
    bool undelivered = entry->state == SLOT_PLACED || entry->state == SLOT_READY;
    if (undelivered && entry->ticket < oldest) oldest = entry->ticket;
  }
  return oldest;
}

uint32_t ledger_mark_child(struct ledger *ledger, uint8_t *marks) {
  uint32_t marked = 0;
  if (ledger_is_copy(ledger)) return 0;
  for (uint32_t slot = 0; slot < ledger->geometry.ranges; slot++) {
    struct ledger_entry *entry = &ledger->entries[slot];
    if (entry->state != SLOT_LEASED || marks[slot]) continue;
    marks[slot] = 1;
    entry->children++;
    marked++;
  }
  return marked;
}

void ledger_unmark_child(struct ledger *ledger, uint8_t *marks) {
  if (ledger_is_copy(ledger)) return;
  for (uint32_t slot = 0; slot < ledger->geometry.ranges; slot++) {
    struct ledger_entry *entry = &ledger->entries[slot];
    entry->children -= marks[slot];
    marks[slot] = 0;
    if (entry->state == SLOT_FORKED && entry->children == 0) make_free(ledger, slot);
  }
}

void ledger_retire_leased(struct ledger *ledger) {
  if (ledger_is_copy(ledger)) return;
  for (uint32_t slot = 0; slot < ledger->geometry.ranges; slot++) {
    struct ledger_entry *entry = &ledger->entries[slot];
    entry->retire = entry->retire || entry->state == SLOT_LEASED;
    /* relaxed: as in ledger_rest_leased. */
    atomic_store_explicit(&entry->outlives, 0, memory_order_relaxed);
  }
}

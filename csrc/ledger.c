/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The moves of a slot.
 *
 *   FREE --place--> PLACED --(take, write, commit: the worker's)--> READY --lease--> LEASED
 *     ^               | reclaim (worker reaped)      free |  (spilled, an error)       | last alias
 *     +---------------+-----------------------------------+----------------------------+
 *
 * Key invariant: the ledger is private to the trainer, and only the trainer moves a slot. What
 * workers write are messages; a READY cell counts only if the ledger says that this worker holds
 * this slot for this ticket. The header is copied out, then checked, then used, so a worker that
 * goes on writing changes nothing.
 *
 * WRITING is not a state here: whether a worker has taken the slot is known to the worker alone
 * and makes no difference to the trainer, which needs to know only who may write to it.
 *
 * Budget. committed_bytes is, over all slots, the grant of those PLACED and the pages of all
 * others; placing keeps it within ring_bytes by trimming FREE slots or granting less. It may be
 * exceeded by the pages of a request, without which nothing could be asked, and by ledger_grant,
 * whose caller does so for the oldest ticket alone.
 *
 * Release. The last alias may die on any thread, so that thread only pushes the slot onto a stack
 * (Treiber's); the trainer takes the whole stack at once, which leaves no room for the ABA problem.
 * In a forked child all of this happens to the child's copy of the ledger.
 *
 * Death of a worker at any instruction leaves its slots PLACED, its rings and its half of their
 * headers in any state; ledger_reclaim frees them once it is reaped and empties the rings, so that
 * nothing it said can be taken for the answer of whoever sits there next. Pages it added without
 * saying so are punched out, so that the ledger's count is right again.
 */

#include "ledger.h"

#include <stdlib.h>

#include "debug/guard.h"

static uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

static uint64_t commitment(const struct ledger_entry *entry) {
  return entry->state == SLOT_PLACED ? entry->grant_bytes : entry->pages_bytes;
}

static uint64_t kept(const struct ledger_entry *entry) {
  bool waits = entry->state == SLOT_LEASED || entry->state == SLOT_FORKED;
  return waits || entry->state == SLOT_RETIRED ? entry->pages_bytes : 0;
}

/* Every change of a slot's state, grant or pages happens between leave and enter. */
static struct ledger_entry *leave(struct ledger *ledger, uint32_t slot) {
  struct ledger_entry *entry = &ledger->entries[slot];
  ledger->committed_bytes -= commitment(entry);
  ledger->kept_bytes -= kept(entry);
  ledger->counts[entry->state]--;
  return entry;
}

static void enter(struct ledger *ledger, struct ledger_entry *entry, enum slot_state state) {
  entry->state = state;
  ledger->committed_bytes += commitment(entry);
  ledger->kept_bytes += kept(entry);
  ledger->counts[state]++;
}

static void retake_pages(struct ledger *ledger, uint32_t slot, uint64_t keep_bytes) {
  struct ledger_entry *entry = leave(ledger, slot);
  uint64_t offset = segment_slot_offset(&ledger->geometry, slot) + keep_bytes;
  STEP("retake: begun");
  if (platform_punch(ledger->fd, offset, entry->pages_bytes - keep_bytes) == 0) {
    entry->pages_bytes = keep_bytes;
  }
  STEP("retake: punched");
  enter(ledger, entry, entry->state);
}

/* A slot that wants nothing has want 0; wanting counts the others. */
static void set_want(struct ledger *ledger, struct ledger_entry *entry, uint64_t want_bytes) {
  ledger->wanting -= entry->want_bytes != 0;
  ledger->wanting += want_bytes != 0;
  entry->want_bytes = want_bytes;
}

/* Punch the pages that a worker may have added without saying so; those that stay are counted. */
static void retake_unseen(struct ledger *ledger, uint32_t slot) {
  struct ledger_entry *entry = &ledger->entries[slot];
  uint64_t unseen = entry->grant_bytes - entry->pages_bytes;
  uint64_t offset = segment_slot_offset(&ledger->geometry, slot) + entry->pages_bytes;
  STEP("unseen: begun");
  if (unseen > 0 && platform_punch(ledger->fd, offset, unseen) != 0) {
    entry->pages_bytes = entry->grant_bytes;
  }
  STEP("unseen: punched");
}

static void move_to_free(struct ledger *ledger, uint32_t slot) {
  struct ledger_entry *entry = leave(ledger, slot);
  if (entry->state == SLOT_PLACED) retake_unseen(ledger, slot);
  set_want(ledger, entry, 0);
  if (entry->children > 0) {
    enter(ledger, entry, SLOT_FORKED);
    return;
  }
  if (entry->retire) {
    enter(ledger, entry, SLOT_RETIRED);
    if (ledger->next_spare >= ledger->geometry.ranges) return;
    slot = ledger->next_spare++;
    entry = leave(ledger, slot);
  }
  enter(ledger, entry, SLOT_FREE);
  ledger->free_slots[ledger->free_count++] = slot;
  STEP("free: done");
}

static void make_free(struct ledger *ledger, uint32_t slot) {
  if (ledger->guard != NULL) guard_freed(ledger, slot);
  move_to_free(ledger, slot);
  if (ledger->guard != NULL) guard_audit(ledger, "after freeing", slot);
}

static void slot_lease_end(struct lease *lease) {
  struct ledger *ledger = lease->owner;
  struct ledger_entry *entry = &ledger->entries[lease->slot];
  STEP("release: begun");
  if (ledger->guard != NULL) guard_released(ledger, lease->slot);
  /* relaxed: a first guess at the head, corrected by the exchange. */
  uint32_t head = atomic_load_explicit(&ledger->released, memory_order_relaxed);
  do {
    /* relaxed: read by the trainer only after the exchange below has published it. */
    atomic_store_explicit(&entry->next_released, head, memory_order_relaxed);
    /* sync released-R -> released-A: the aliases' uses and next_released are visible first. */
  } while (!atomic_compare_exchange_weak_explicit(&ledger->released, &head, lease->slot + 1,
                                                  memory_order_release, memory_order_relaxed));
  STEP("release: stacked");
  ledger_unref(ledger);
}

/* Empty the rings between the trainer and a worker that is not there. */
static void open_rings(struct ledger *ledger, uint32_t worker) {
  const struct geometry *geometry = &ledger->geometry;
  struct ring *tasks = segment_task_ring(ledger->base, geometry, worker);
  struct ring *ready = segment_ready_ring(ledger->base, geometry, worker);
  STEP("reopen: begun");
  ring_init(tasks, 0);
  ring_init(ready, 0);
  ledger->task_rings[worker] = ring_open_writer(tasks, geometry->ring_capacity);
  ledger->ready_rings[worker] = ring_open_reader(ready, geometry->ring_capacity);
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
  ledger->next_spare = slots;
}

static void free_ledger(struct ledger *ledger) {
  free(ledger->free_slots);
  free(ledger->ready_rings);
  free(ledger->task_rings);
  free(ledger->entries);
  free(ledger);
}

struct ledger *ledger_new(uint8_t *base, int fd, const struct geometry *geometry, uint32_t slots,
                          uint64_t ring_bytes_limit) {
  if (slots == 0 || slots > geometry->ranges) return NULL;
  struct ledger *ledger = calloc(1, sizeof *ledger);
  if (ledger == NULL) return NULL;
  ledger->base = base;
  ledger->fd = fd;
  ledger->geometry = *geometry;
  ledger->ring_bytes = ring_bytes_limit;
  ledger->share_bytes = ring_bytes_limit / slots / geometry->page_bytes * geometry->page_bytes;
  ledger->entries = aligned_alloc(CACHE_LINE, geometry->ranges * sizeof *ledger->entries);
  ledger->task_rings = calloc(geometry->workers, sizeof *ledger->task_rings);
  ledger->ready_rings = calloc(geometry->workers, sizeof *ledger->ready_rings);
  ledger->free_slots = calloc(geometry->ranges, sizeof *ledger->free_slots);
  if (!ledger->entries || !ledger->task_rings || !ledger->ready_rings || !ledger->free_slots) {
    free_ledger(ledger);
    return NULL;
  }
  memset(ledger->entries, 0, geometry->ranges * sizeof *ledger->entries);
  /* relaxed: nobody else knows the ledger yet. */
  atomic_store_explicit(&ledger->references, 1, memory_order_relaxed);
  fill_ledger(ledger, slots);
  for (uint32_t worker = 0; worker < geometry->workers; worker++) open_rings(ledger, worker);
  return ledger;
}

void ledger_unref(struct ledger *ledger) {
  /* sync reference-R -> reference-A: this holder's last use comes before the unmapping. */
  if (atomic_fetch_sub_explicit(&ledger->references, 1, memory_order_release) != 1) return;
  /* sync reference-A <- reference-R: all other holders are done. */
  (void)atomic_load_explicit(&ledger->references, memory_order_acquire);
  STEP("unmap: begun");
  if (ledger->guard != NULL) guard_unmap(ledger);
  else munmap(ledger->base, ledger->geometry.total_bytes);
  STEP("unmap: done");
  close(ledger->fd);
  free_ledger(ledger);
}

/* Make the first bytes of a slot exist. */
static int need_pages(struct ledger *ledger, uint32_t slot, uint64_t bytes) {
  struct ledger_entry *entry = &ledger->entries[slot];
  if (bytes <= entry->pages_bytes) return 0;
  uint64_t offset = segment_slot_offset(&ledger->geometry, slot) + entry->pages_bytes;
  int error = platform_reserve(ledger->fd, offset, bytes - entry->pages_bytes);
  if (error != 0) return error;
  leave(ledger, slot);
  entry->pages_bytes = bytes;
  enter(ledger, entry, entry->state);
  return 0;
}

/* Give back pages of FREE slots until missing bytes are found, coldest slot first. */
static uint64_t trim_free(struct ledger *ledger, uint64_t missing_bytes) {
  uint64_t before = ledger->committed_bytes;
  for (uint32_t i = 0; i < ledger->free_count; i++) {
    if (before - ledger->committed_bytes >= missing_bytes) break;
    uint32_t slot = ledger->free_slots[i];
    if (ledger->entries[slot].pages_bytes > 0) retake_pages(ledger, slot, 0);
  }
  return before - ledger->committed_bytes;
}

uint64_t ledger_room(struct ledger *ledger, uint32_t slot, uint64_t want_bytes) {
  uint64_t others = ledger->committed_bytes - commitment(&ledger->entries[slot]);
  /* What a worker wants may be any number: the sum below must not wrap. */
  want_bytes = min_u64(want_bytes, ledger->geometry.range_bytes);
  if (others + want_bytes > ledger->ring_bytes) {
    others -= trim_free(ledger, others + want_bytes - ledger->ring_bytes);
  }
  return others < ledger->ring_bytes ? ledger->ring_bytes - others : 0;
}

/* What a slot may fill without asking: its share or the pages it has, as the budget allows. */
static uint64_t standing_grant(struct ledger *ledger, uint32_t slot, uint64_t request_bytes) {
  uint64_t page_bytes = ledger->geometry.page_bytes;
  uint64_t pages = ledger->entries[slot].pages_bytes;
  uint64_t fair = min_u64(max_u64(ledger->share_bytes, pages), ledger->geometry.range_bytes);
  uint64_t room = ledger_room(ledger, slot, fair) / page_bytes * page_bytes;
  return max_u64(min_u64(fair, room), request_bytes);
}

/* A FREE slot: the one freed last; with a guard the one freed first, to catch late uses. */
static uint32_t take_free(struct ledger *ledger) {
  if (ledger->guard != NULL) guard_choose(ledger);
  return ledger->free_slots[--ledger->free_count];
}

static void write_request(struct ledger *ledger, uint32_t slot, const void *request,
                          uint64_t bytes) {
  if (ledger->guard != NULL) {
    guard_write(ledger, slot, request, bytes);
  } else {
    uint8_t *start = ledger->base + segment_slot_offset(&ledger->geometry, slot);
    STEP_COPY("order: half a request", start, request, bytes);
  }
}

int64_t ledger_place(struct ledger *ledger, uint32_t worker, uint64_t ticket,
                     enum request_kind kind, const void *request, uint64_t bytes, uint32_t mode) {
  uint64_t request_pages = round_up(bytes, ledger->geometry.page_bytes);
  if (request_pages > ledger->geometry.range_bytes) return -E2BIG;
  if (ledger->free_count == 0) return -EAGAIN;
  uint32_t slot = take_free(ledger);
  struct ledger_entry *entry = &ledger->entries[slot];
  uint64_t grant = standing_grant(ledger, slot, request_pages);
  if (entry->pages_bytes > grant) retake_pages(ledger, slot, grant);
  int error = need_pages(ledger, slot, request_pages);
  if (error != 0) {
    ledger->free_slots[ledger->free_count++] = slot;
    return error;
  }
  leave(ledger, slot);
  entry->worker = worker;
  entry->ticket = ticket;
  entry->grant_bytes = max_u64(grant, entry->pages_bytes);
  enter(ledger, entry, SLOT_PLACED);

  struct slot_order *order = &segment_header(ledger->base, &ledger->geometry, slot)->order;
  STEP("order: begun");
  order->ticket = ticket, STEP("order: ticket");
  order->request_bytes = bytes, STEP("order: request_bytes");
  order->request_kind = (uint32_t)kind, STEP("order: request_kind");
  order->mode = ledger->guard == NULL ? mode : mode | ORDER_GUARDED;
  STEP("order: mode");
  order->pages_bytes = entry->pages_bytes, STEP("order: pages_bytes");
  order->expect_bytes = min_u64(ledger->expect_bytes, entry->grant_bytes);
  STEP("order: expect_bytes");
  /* relaxed: the push publishes the order. */
  atomic_store_explicit(&order->grant_bytes, entry->grant_bytes, memory_order_relaxed);
  STEP("order: grant_bytes");
  /* relaxed: as above. */
  atomic_store_explicit(&order->refused_bytes, 0, memory_order_relaxed);
  STEP("order: refused_bytes");
  write_request(ledger, slot, request, bytes);
  STEP("order: request");

  /* The ring holds every slot and the control values besides: full means a forged read_pos. */
  if (!ring_push(&ledger->task_rings[worker], cell_make(VERB_PLACE, slot))) {
    make_free(ledger, slot);
    return -EPROTO;
  }
  doorbell_ring(&segment_worker(ledger->base, &ledger->geometry, worker)->doorbell);
  if (ledger->guard != NULL) guard_audit(ledger, "after placing", slot);
  return slot;
}

bool ledger_tell(struct ledger *ledger, uint32_t worker, enum verb verb) {
  if (!ring_push(&ledger->task_rings[worker], cell_make(verb, 0))) return false;
  doorbell_ring(&segment_worker(ledger->base, &ledger->geometry, worker)->doorbell);
  return true;
}

/* Which check of a slot's answer fails; NULL: it may be used. */
static const char *fault_in(const struct ledger *ledger, const struct ledger_entry *entry,
                            const struct slot_answer *answer) {
  uint64_t granted = entry->grant_bytes;
  if (answer->ticket != entry->ticket) return "the answer is for another ticket";
  if (answer->kind < ANSWER_BATCH || answer->kind > ANSWER_NOTHING) return "unknown answer kind";
  if (answer->pages_bytes > ledger->geometry.range_bytes) return "more pages than the range has";
  if (answer->pages_bytes > granted) return "more pages than granted";
  if (answer->pages_bytes % ledger->geometry.page_bytes != 0) return "a part of a page";
  if (answer->payload_bytes > answer->pages_bytes) return "payload beyond the slot's pages";
  if (answer->layout_offset > answer->pages_bytes) return "layout starts beyond the slot's pages";
  if (answer->layout_bytes > answer->pages_bytes - answer->layout_offset) {
    return "layout ends beyond the slot's pages";
  }
  if (answer->snapshot_bytes > answer->pages_bytes - answer->layout_offset - answer->layout_bytes) {
    return "snapshot ends beyond the slot's pages";
  }
  return NULL;
}

static const char *accept_ready(struct ledger *ledger, uint32_t slot) {
  struct ledger_entry *entry = &ledger->entries[slot];
  entry->answer = segment_header(ledger->base, &ledger->geometry, slot)->answer;
  STEP("receive: answer read");
  const char *fault = fault_in(ledger, entry, &entry->answer);
  if (fault == NULL && ledger->guard != NULL) fault = guard_fault(ledger, slot);
  if (fault != NULL) return fault;
  leave(ledger, slot);
  /* User code in the worker may have given up waiting, as with a timeout of its own. */
  set_want(ledger, entry, 0);
  entry->pages_bytes = max_u64(entry->pages_bytes, entry->answer.pages_bytes);
  entry->retire = entry->retire || (entry->answer.flags & ANSWER_KEPT);
  enter(ledger, entry, SLOT_READY);
  if (ledger->guard != NULL) guard_audit(ledger, "after receiving", slot);
  if (ledger->expect_bytes == 0 && entry->answer.kind == ANSWER_BATCH) {
    const struct slot_answer *answer = &entry->answer;
    ledger->expect_bytes =
        answer->layout_offset + answer->layout_bytes + answer->snapshot_bytes;
  }
  return NULL;
}

static const char *accept_want(struct ledger *ledger, uint32_t slot) {
  struct ledger_entry *entry = &ledger->entries[slot];
  entry->answer = segment_header(ledger->base, &ledger->geometry, slot)->answer;
  STEP("receive: want read");
  if (entry->answer.ticket != entry->ticket) return "wants pages for another ticket";
  /* One that gave up waiting and asks again may have been granted it in the meantime. */
  if (entry->answer.want_bytes <= entry->grant_bytes) return NULL;
  set_want(ledger, entry, entry->answer.want_bytes);
  if (ledger->guard != NULL) guard_audit(ledger, "after the want of", slot);
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

bool ledger_has_news(struct ledger *ledger) {
  for (uint32_t worker = 0; worker < ledger->geometry.workers; worker++) {
    if (ring_has_value(&ledger->ready_rings[worker])) return true;
  }
  return false;
}

uint8_t *ledger_open(struct ledger *ledger, uint32_t slot) {
  if (ledger->guard != NULL) guard_open(ledger, slot);
  return ledger->base + segment_slot_offset(&ledger->geometry, slot);
}

struct lease *ledger_lease(struct ledger *ledger, uint32_t slot, uint32_t aliases) {
  if (ledger->guard != NULL) guard_leased(ledger, slot);
  struct ledger_entry *entry = leave(ledger, slot);
  enter(ledger, entry, SLOT_LEASED);
  if (ledger->guard != NULL) guard_audit(ledger, "after leasing", slot);
  entry->leased_ns = platform_now_ns();
  /* relaxed: the caller holds a reference, so the count cannot be zero. */
  atomic_fetch_add_explicit(&ledger->references, 1, memory_order_relaxed);
  lease_begin(&entry->lease, aliases);
  STEP("lease: begun");
  return &entry->lease;
}

void ledger_free(struct ledger *ledger, uint32_t slot) { make_free(ledger, slot); }

void ledger_reclaim(struct ledger *ledger, uint32_t worker) {
  for (uint32_t slot = 0; slot < ledger->geometry.ranges; slot++) {
    const struct ledger_entry *entry = &ledger->entries[slot];
    if (entry->state == SLOT_PLACED && entry->worker == worker) make_free(ledger, slot);
  }
  STEP("reclaim: slots freed");
  open_rings(ledger, worker);
}

void ledger_restart(struct ledger *ledger) {
  ledger_collect(ledger);
  for (uint32_t worker = 0; worker < ledger->geometry.workers; worker++) {
    ledger_reclaim(ledger, worker);
  }
  for (uint32_t slot = 0; slot < ledger->geometry.ranges; slot++) {
    if (ledger->entries[slot].state == SLOT_READY) make_free(ledger, slot);
  }
  ledger_stop(ledger, false);
}

void ledger_trim(struct ledger *ledger) {
  ledger_collect(ledger);
  trim_free(ledger, UINT64_MAX);
}

void ledger_stop(struct ledger *ledger, bool stopping) {
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
  /* relaxed: most calls find nothing; the exchange orders the others. */
  if (atomic_load_explicit(&ledger->released, memory_order_relaxed) == 0) return;
  /* sync released-A <- released-R: the aliases' last uses are over before the slot is reused. */
  uint32_t head = atomic_exchange_explicit(&ledger->released, 0, memory_order_acquire);
  STEP("collect: taken");
  while (head != 0) {
    uint32_t slot = head - 1;
    /* relaxed: published by the exchange above. */
    head = atomic_load_explicit(&ledger->entries[slot].next_released, memory_order_relaxed);
    make_free(ledger, slot);
  }
}

void ledger_grant(struct ledger *ledger, uint32_t slot, uint64_t grant_bytes) {
  if (ledger->entries[slot].state != SLOT_PLACED) return;
  if (ledger->guard != NULL) guard_audit(ledger, "before granting", slot);
  struct ledger_entry *entry = leave(ledger, slot);
  entry->grant_bytes = grant_bytes;
  enter(ledger, entry, SLOT_PLACED);
  set_want(ledger, entry, 0);
  if (ledger->guard != NULL) guard_audit(ledger, "after granting", slot);
  struct slot_order *order = &segment_header(ledger->base, &ledger->geometry, slot)->order;
  STEP("grant: begun");
  /* sync granted-R -> granted-A: the worker fills pages only after the ledger counted them. */
  atomic_store_explicit(&order->grant_bytes, grant_bytes, memory_order_release);
  STEP("grant: grant_bytes");
  doorbell_ring(&segment_worker(ledger->base, &ledger->geometry, entry->worker)->doorbell);
}

void ledger_refuse(struct ledger *ledger, uint32_t slot) {
  struct slot_order *order = &segment_header(ledger->base, &ledger->geometry, slot)->order;
  uint64_t want_bytes = ledger->entries[slot].want_bytes;
  STEP("refuse: begun");
  /* sync refused-R -> refused-A: the want was read before the worker writes its answer over it. */
  atomic_store_explicit(&order->refused_bytes, want_bytes, memory_order_release);
  STEP("refuse: refused_bytes");
  set_want(ledger, &ledger->entries[slot], 0);
  uint32_t worker = ledger->entries[slot].worker;
  doorbell_ring(&segment_worker(ledger->base, &ledger->geometry, worker)->doorbell);
}

uint32_t ledger_untaken(struct ledger *ledger, uint32_t worker) {
  return ring_backlog(&ledger->task_rings[worker]);
}

uint32_t ledger_unread(struct ledger *ledger) {
  uint32_t unread = 0;
  for (uint32_t worker = 0; worker < ledger->geometry.workers; worker++) {
    unread += ring_length(&ledger->ready_rings[worker]);
  }
  return unread;
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
  for (uint32_t slot = 0; slot < ledger->geometry.ranges; slot++) {
    struct ledger_entry *entry = &ledger->entries[slot];
    marks[slot] = entry->state == SLOT_LEASED || entry->state == SLOT_FORKED;
    entry->children += marks[slot];
    marked += marks[slot];
  }
  return marked;
}

void ledger_unmark_child(struct ledger *ledger, const uint8_t *marks) {
  for (uint32_t slot = 0; slot < ledger->geometry.ranges; slot++) {
    struct ledger_entry *entry = &ledger->entries[slot];
    entry->children -= marks[slot];
    if (entry->state == SLOT_FORKED && entry->children == 0) make_free(ledger, slot);
  }
}

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

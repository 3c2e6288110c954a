/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The trainer's notes for those who look: where it is, and a record of each batch that it handed
 * out. A record is written whole when next() returns; only the time of release is put in later, as
 * one word, if the record is still there. So a batch that is held is in the log too, and a loop
 * that holds its batches for long loses none of them from it.
 *
 * The records are counted, and record number n stands at n modulo LOG_RECORDS with the sequence
 * number 2n + 2. Tickets would not do: each iterator's begin at 0.
 *
 * Death of the trainer in the middle leaves an odd number: a reader skips that record.
 */

#include "log.h"

#include "fields.h"
#include "ledger.h"

static uint64_t now_ns(void) { return (uint64_t)platform_now_ns(); }

static void show(struct ledger *ledger) {
  struct trainer_view *view = &segment_control(ledger->base)->trainer;
  view_write(&view->sequence, &ledger->log.view.state, VIEW_BYTES(view));
}

/* Enter a state, with what else has changed since the last one. */
static void enter(struct ledger *ledger, enum trainer_state state, uint64_t now) {
  struct trainer_view *view = &ledger->log.view;
  view->state = (uint32_t)state;
  view->since_ns = now;
  view->resident_bytes = ledger->existing_bytes;
  memcpy(view->counts, ledger->counts, sizeof ledger->counts);
  show(ledger);
}

void log_name(struct ledger *ledger, const struct nameplate *known) {
  if (ledger_is_copy(ledger)) return;
  const struct geometry *geometry = &ledger->geometry;
  struct nameplate *plate = &segment_control(ledger->base)->nameplate;
  struct nameplate draft = *known;
  draft.magic = VIEW_MAGIC;
  draft.layout = view_layout_sum();
  draft.state = SEGMENT_LIVE;
  draft.workers = geometry->workers;
  draft.log_records = LOG_RECORDS;
  draft.worker_offset = sizeof(struct control_block);
  draft.worker_stride = geometry->worker_stride;
  draft.answers_offset = (uint64_t)((uint8_t *)segment_ready_ring(ledger->base, geometry, 0) -
                                    (uint8_t *)segment_worker(ledger->base, geometry, 0));
  draft.log_offset = geometry->log_offset;
  draft.total_bytes = geometry->total_bytes;
  view_write(&plate->sequence, &draft.magic, VIEW_BYTES(plate));
}

void log_segment(struct ledger *ledger, enum segment_state state) {
  if (ledger_is_copy(ledger)) return;
  struct nameplate *plate = &segment_control(ledger->base)->nameplate;
  struct nameplate draft;
  /* Only this process writes it, so what it reads is whole. */
  (void)view_read(&draft.magic, &plate->sequence, VIEW_BYTES(plate));
  draft.state = (uint32_t)state;
  view_write(&plate->sequence, &draft.magic, VIEW_BYTES(plate));
}

void log_begin(struct ledger *ledger, uint64_t epoch, uint64_t length, uint64_t resumed_at,
               uint64_t begun_ns) {
  if (ledger_is_copy(ledger)) return;
  struct log *log = &ledger->log;
  uint64_t now = now_ns();
  uint64_t logged = log->view.logged, spilled = log->view.spilled;
  memset(&log->view, 0, sizeof log->view);
  memset(&log->nexts, 0, sizeof log->nexts);
  memset(&log->steps, 0, sizeof log->steps);
  log->has_draft = log->has_returned = false;
  log->in_vain_ns = 0;
  log->view.epoch = epoch;
  log->view.begun_ns = begun_ns;
  log->view.length = length;
  log->view.resumed_at = resumed_at;
  log->view.logged = logged;
  log->view.spilled = spilled;
  enter(ledger, TRAINER_STEPPING, now);
}

void log_end(struct ledger *ledger) {
  if (ledger_is_copy(ledger)) return;
  enter(ledger, TRAINER_BETWEEN, now_ns());
}

void log_ask(struct ledger *ledger) {
  if (ledger_is_copy(ledger)) return;
  struct log *log = &ledger->log;
  uint64_t now = now_ns();
  /* The time before the first batch of an epoch, or after a timeout, is no step. */
  if (log->view.state == TRAINER_STEPPING && log->has_returned) {
    histogram_add(&log->steps, now - log->view.since_ns);
  }
  log->has_draft = false;
  if (log->in_vain_ns == 0) log->parked_before_ns = log->view.parked_ns;
  enter(ledger, TRAINER_WAITING, now);
}

void log_parked(struct ledger *ledger, uint64_t ns) { ledger->log.view.parked_ns += ns; }

void log_take(struct ledger *ledger, uint32_t slot, uint64_t spill) {
  const struct ledger_entry *entry = &ledger->entries[slot];
  const struct slot_times *times = &entry->times;
  struct log *log = &ledger->log;
  log->draft = (struct log_record){.ticket = entry->ticket,
                                   .worker = entry->worker,
                                   .slot = slot,
                                   .taken_ns = times->taken_ns,
                                   .fetched_ns = times->fetched_ns,
                                   .written_ns = times->written_ns,
                                   .blocked_ns = times->blocked_ns,
                                   .blocked_fetching_ns = times->blocked_fetching_ns,
                                   .bytes = entry->answer.payload_bytes,
                                   .longest_ns = times->longest_ns,
                                   .longest_index = times->longest_index,
                                   .longest_position = times->longest_position,
                                   .samples = times->samples,
                                   .spill = spill};
  log->draft_slot = spill != 0 ? LOG_NO_SLOT : slot;
  log->has_draft = true;
  log->view.spilled += spill != 0;
}

/* True if the batch of the draft is still in its slot. */
static bool is_in_slot(const struct ledger *ledger) {
  const struct log *log = &ledger->log;
  if (log->draft_slot == LOG_NO_SLOT) return false;
  const struct ledger_entry *entry = &ledger->entries[log->draft_slot];
  return entry->state == SLOT_LEASED && entry->ticket == log->draft.ticket;
}

static struct log_record *record_at(struct ledger *ledger, uint64_t number) {
  return segment_record(ledger->base, &ledger->geometry, (uint32_t)(number % LOG_RECORDS));
}

static void write_record(struct ledger *ledger, uint64_t now) {
  struct log *log = &ledger->log;
  uint64_t number = log->view.logged++;
  struct log_record *record = record_at(ledger, number);
  bool stays = is_in_slot(ledger);
  log->draft.epoch = log->view.epoch;
  log->draft.asked_ns = log->view.since_ns - log->in_vain_ns;
  log->draft.returned_ns = now;
  log->draft.parked_ns = log->view.parked_ns - log->parked_before_ns;
  /* relaxed: a private copy. */
  atomic_store_explicit(&log->draft.released_ns, stays ? 0 : now, memory_order_relaxed);
  view_write_as(&record->sequence, 2 * number + 2, &log->draft.ticket, VIEW_BYTES(record));
  if (stays) ledger->entries[log->draft_slot].logged = number + 1;
  if (log->view.batches++ == 0) log->view.first_ns = now;
  log->view.bytes += log->draft.bytes;
}

void log_return(struct ledger *ledger) {
  if (ledger_is_copy(ledger)) return;
  struct log *log = &ledger->log;
  uint64_t now = now_ns();
  log->has_returned = log->has_draft;
  if (log->has_draft) {
    histogram_add(&log->nexts, log->in_vain_ns + now - log->view.since_ns);
    write_record(ledger, now);
    log->in_vain_ns = 0;
  } else {
    /* A user who catches timeouts and asks again has waited all the time. */
    log->in_vain_ns += now - log->view.since_ns;
  }
  log->has_draft = false;
  enter(ledger, TRAINER_STEPPING, now);
}

void log_release(struct ledger *ledger, uint32_t slot) {
  struct ledger_entry *entry = &ledger->entries[slot];
  uint64_t number = entry->logged;
  entry->logged = 0;
  if (number == 0) return;
  struct log_record *record = record_at(ledger, number - 1);
  /* relaxed: only the trainer writes it. */
  if (atomic_load_explicit(&record->sequence, memory_order_relaxed) != 2 * number) return;
  /* relaxed: one word, for people. */
  atomic_store_explicit(&record->released_ns, entry->released_ns, memory_order_relaxed);
  STEP("log: released_ns");
}

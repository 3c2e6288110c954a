/* SPDX-License-Identifier: BSD-3-Clause */

/* What may be looked at: views are whole, the log has each batch once, durations are counted. */

#include "check.h"
#include "fixture.h"
#include "fields.h"
#include "histogram.h"

static struct trainer_view trainer_of(struct fixture *fixture) {
  struct trainer_view *view = &segment_control(fixture->base)->trainer, copy;
  CHECK(view_read(&copy.state, &view->sequence, VIEW_BYTES(view)));
  return copy;
}

static struct worker_view worker_of(struct fixture *fixture, uint32_t worker) {
  struct worker_view *view = &segment_worker(fixture->base, &fixture->geometry, worker)->view, copy;
  CHECK(view_read(&copy.state, &view->sequence, VIEW_BYTES(view)));
  return copy;
}

static struct log_record *record_of(struct fixture *fixture, uint32_t place) {
  return segment_record(fixture->base, &fixture->geometry, place);
}

TEST(half_a_view_is_refused) {
  alignas(CACHE_LINE) struct worker_view view = {.state = 0}, copy;
  struct worker_view draft = {.state = WORKER_FETCHING, .ticket = 7};
  view_write(&view.sequence, &draft.state, VIEW_BYTES(&view));
  CHECK_EQUAL(2, view.sequence);
  CHECK(view_read(&copy.state, &view.sequence, VIEW_BYTES(&view)));
  CHECK_EQUAL(7, copy.ticket);
  view.sequence = 3; /* its writer died in the middle */
  CHECK(!view_read(&copy.state, &view.sequence, VIEW_BYTES(&view)));
  view_write(&view.sequence, &draft.state, VIEW_BYTES(&view)); /* the next one goes on */
  CHECK_EQUAL(4, view.sequence);
}

TEST(nameplate_says_where_parts_lie) {
  CLOSED struct fixture fixture = fixture_open(2, 3, 4, 64);
  struct nameplate *plate = &segment_control(fixture.base)->nameplate;
  CHECK_EQUAL(0, plate->sequence);
  const struct nameplate known = {.loader = 5, .owner_pid = 1234, .label = "Pictures"};
  log_name(fixture.ledger, &known);
  CHECK_EQUAL(VIEW_MAGIC, plate->magic);
  CHECK_EQUAL(view_layout_sum(), plate->layout);
  CHECK_EQUAL(SEGMENT_LIVE, plate->state);
  CHECK_EQUAL(5, plate->loader);
  CHECK_EQUAL(1234, plate->owner_pid);
  CHECK_EQUAL(0, strcmp("Pictures", plate->label));
  for (uint32_t worker = 0; worker < 2; worker++) {
    CHECK((uint8_t *)segment_worker(fixture.base, &fixture.geometry, worker) ==
          fixture.base + plate->worker_offset + worker * plate->worker_stride);
  }
  CHECK((uint8_t *)record_of(&fixture, 0) == fixture.base + plate->log_offset);
  log_segment(fixture.ledger, SEGMENT_IDLE);
  CHECK_EQUAL(SEGMENT_IDLE, plate->state);
  CHECK_EQUAL(5, plate->loader);
}

/* One next() that returns a batch; the slot stays leased, or was copied out. */
static uint32_t hand_out(struct fixture *fixture, uint64_t ticket, uint64_t spill) {
  log_ask(fixture->ledger);
  uint32_t slot = ready_slot(fixture, ticket, 1);
  log_parked(fixture->ledger, 10);
  log_take(fixture->ledger, slot, spill);
  if (spill != 0) CHECK(ledger_free(fixture->ledger, slot));
  else CHECK(ledger_lease(fixture->ledger, slot, 1) != NULL);
  log_return(fixture->ledger);
  return slot;
}

TEST(each_batch_is_logged) {
  CLOSED struct fixture fixture = fixture_open(1, 3, 3, 64);
  uint64_t epoch = UINT64_C(1) << 32; /* no number of an epoch is the last one */
  log_begin(fixture.ledger, epoch, 2, 5, 7);
  uint32_t slot = hand_out(&fixture, 0, 0);
  const struct log_record *record = record_of(&fixture, 0);
  CHECK_EQUAL(2, record->sequence);
  CHECK_EQUAL(0, record->ticket);
  CHECK_EQUAL(epoch, record->epoch);
  CHECK_EQUAL(epoch, trainer_of(&fixture).epoch);
  CHECK_EQUAL(slot, record->slot);
  CHECK_EQUAL(10, record->parked_ns);
  CHECK_EQUAL(0, record->released_ns);
  CHECK(record->asked_ns <= record->placed_ns && record->placed_ns <= record->received_ns);
  CHECK(record->received_ns <= record->returned_ns);
  lease_drop(&fixture.ledger->entries[slot].lease);
  CHECK_EQUAL(0, record->released_ns); /* the trainer has not looked yet */
  ledger_collect(fixture.ledger);
  CHECK(record->released_ns >= record->returned_ns);

  hand_out(&fixture, 1, 3);
  record = record_of(&fixture, 1);
  CHECK_EQUAL(4, record->sequence);
  CHECK_EQUAL(3, record->spill);
  CHECK_EQUAL(record->returned_ns, record->released_ns);
  struct trainer_view view = trainer_of(&fixture);
  CHECK_EQUAL(2, view.batches);
  CHECK_EQUAL(2, view.logged);
  CHECK_EQUAL(1, view.spilled);
  CHECK_EQUAL(5, view.resumed_at);
  CHECK_EQUAL(7, view.begun_ns);
  CHECK_EQUAL(20, view.parked_ns);
  CHECK_EQUAL(TRAINER_STEPPING, view.state);
  CHECK_EQUAL(fixture.ledger->counts[SLOT_FREE], view.counts[SLOT_FREE]);
  log_end(fixture.ledger);
  CHECK_EQUAL(TRAINER_BETWEEN, trainer_of(&fixture).state);
}

/* The record of a batch that is held for long is another batch's by then, and stays that. */
TEST(late_release_spoils_no_record) {
  CLOSED struct fixture fixture = fixture_open(1, 3, 3, 64);
  log_begin(fixture.ledger, 1, VIEW_UNKNOWN, 0, 7);
  uint32_t held = hand_out(&fixture, 0, 0);
  for (uint64_t ticket = 1; ticket <= LOG_RECORDS; ticket++) hand_out(&fixture, ticket, 1);
  const struct log_record *record = record_of(&fixture, 0);
  uint64_t released_ns = record->released_ns;
  CHECK_EQUAL(LOG_RECORDS, record->ticket);
  CHECK_EQUAL(2 * LOG_RECORDS + 2, record->sequence);
  lease_drop(&fixture.ledger->entries[held].lease);
  ledger_collect(fixture.ledger);
  CHECK_EQUAL(released_ns, record->released_ns);
}

/* next() without a batch, as at the end of an epoch, or with one that was lost to an error. */
TEST(nothing_handed_out_is_not_logged) {
  CLOSED struct fixture fixture = fixture_open(1, 3, 3, 64);
  log_begin(fixture.ledger, 1, VIEW_UNKNOWN, 0, 7);
  log_ask(fixture.ledger);
  log_return(fixture.ledger);
  CHECK_EQUAL(0, trainer_of(&fixture).logged);
  CHECK_EQUAL(0, record_of(&fixture, 0)->sequence);
  CHECK_EQUAL(0, fixture.ledger->log.steps.count);
}

TEST(worker_shows_its_samples) {
  CLOSED struct fixture fixture = fixture_open(1, 2, 2, 64);
  struct desk *desk = &fixture.desks[0];
  uint32_t slot = place(&fixture, 0, 6);
  desk_show(desk, WORKER_IDLE, 100);
  CHECK_EQUAL(WORKER_IDLE, worker_of(&fixture, 0).state);
  take(&fixture, 0, slot);
  uint64_t taken_ns = (uint64_t)platform_now_ns();
  desk_begin_batch(desk, slot, 6, taken_ns);
  CHECK_EQUAL(VIEW_WHOLE_BATCH, worker_of(&fixture, 0).position);
  for (uint32_t position = 0; position < 3; position++) {
    desk_begin_sample(desk, position, 3, 40 + position);
    struct worker_view view = worker_of(&fixture, 0);
    CHECK_EQUAL(WORKER_FETCHING, view.state);
    CHECK_EQUAL(6, view.ticket);
    CHECK_EQUAL(position, view.position);
    CHECK_EQUAL(40 + position, view.index);
    /* The second sample takes longest. */
    if (position == 1) platform_park(&segment_control(fixture.base)->stopping, 0, 30000000);
  }
  desk_begin_collating(desk, 5);
  CHECK_EQUAL(WORKER_COLLATING, worker_of(&fixture, 0).state);
  write_answer(&fixture, slot, ANSWER_BATCH, 1);
  desk_end_batch(desk, slot, 8, 1000);
  arrive(&fixture, slot);
  const struct slot_times *times = &fixture.ledger->entries[slot].times;
  CHECK_EQUAL(41, times->longest_index);
  CHECK_EQUAL(1, times->longest_position);
  CHECK(times->longest_ns >= 10000000);
  CHECK_EQUAL(3, times->samples);
  CHECK_EQUAL(8, times->blocked_ns);
  CHECK_EQUAL(5, times->blocked_fetching_ns);
  CHECK(taken_ns <= times->fetched_ns && times->fetched_ns <= times->written_ns);
  struct worker_clock *clock = &segment_worker(fixture.base, &fixture.geometry, 0)->clock;
  CHECK_EQUAL(times->fetched_ns - taken_ns - 5, words_load(&clock->fetching_ns));
  CHECK_EQUAL(times->written_ns - times->fetched_ns - 3, words_load(&clock->collating_ns));
  CHECK_EQUAL(1, words_load(&clock->batches));
  CHECK_EQUAL(1000, words_load(&clock->bytes));
  CHECK(ledger_free(fixture.ledger, slot));
}

TEST(durations_are_within_a_thirtysecond) {
  uint64_t last = 0;
  for (uint64_t ns = 1; ns < UINT64_C(1) << 42; ns += ns / 7 + 1) {
    uint32_t bucket = histogram_bucket(ns);
    uint64_t middle = histogram_middle(bucket);
    uint64_t off = middle > ns ? middle - ns : ns - middle;
    CHECK(bucket < HISTOGRAM_BUCKETS);
    CHECK(32 * off <= ns);
    CHECK(bucket >= histogram_bucket(last));
    last = ns;
  }
  CHECK_EQUAL(HISTOGRAM_BUCKETS - 1, histogram_bucket(UINT64_MAX));
  struct histogram long_run = {.count = UINT32_MAX, .buckets = {UINT32_MAX}};
  histogram_add(&long_run, 0);
  CHECK_EQUAL(long_run.count, long_run.buckets[0]);
}

/* A table that named a field twice, or let one reach beyond its struct, would be found here. */
TEST(fields_lie_in_their_parts) {
  for (size_t i = 0; i < view_fields_count; i++) {
    const struct view_field *field = &view_fields[i];
    CHECK(field->offset < field->part_bytes);
    for (size_t j = 0; j < i; j++) {
      bool is_same = strcmp(field->part, view_fields[j].part) == 0;
      CHECK(!is_same || field->offset > view_fields[j].offset);
    }
  }
}

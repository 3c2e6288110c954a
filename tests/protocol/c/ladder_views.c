/* SPDX-License-Identifier: BSD-3-Clause */

/* What may be looked at: a view is whole, a record its own batch's, a duration right. */

#include "check.h"
#include "fixture.h"
#include "fields.h"
#include "histogram.h"

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

/* The record of a batch that is held for long is another batch's by then, and stays that. */
TEST(late_release_spoils_no_record) {
  CLOSED struct fixture fixture = fixture_open(1, 3, 3, 64);
  log_begin(fixture.ledger, 1, VIEW_UNKNOWN, 0, 7);
  uint32_t held = hand_out(&fixture, 0, 0);
  uint64_t first_ns = fixture.ledger->log.view.first_ns;
  for (uint64_t ticket = 1; ticket <= LOG_RECORDS; ticket++) hand_out(&fixture, ticket, 1);
  const struct log_record *record = record_of(&fixture, 0);
  uint64_t released_ns = record->released_ns;
  CHECK_EQUAL(LOG_RECORDS, record->ticket);
  CHECK_EQUAL(2 * LOG_RECORDS + 2, record->sequence);
  lease_drop(&fixture.ledger->entries[held].lease);
  ledger_collect(fixture.ledger);
  CHECK_EQUAL(released_ns, record->released_ns);
  CHECK(first_ns != 0 && first_ns == fixture.ledger->log.view.first_ns);
}

/* 8 ns without pages, 5 of them while it fetched: they are neither fetching nor collating. */
TEST(blocked_time_is_no_work) {
  CLOSED struct fixture fixture = fixture_open(1, 2, 2, 64);
  struct desk *desk = &fixture.desks[0];
  uint32_t slot = place(&fixture, 0, 6);
  take(&fixture, 0, slot);
  uint64_t taken_ns = (uint64_t)platform_now_ns();
  desk_begin_batch(desk, 6, taken_ns);
  desk_begin_sample(desk, 3, 4, 14);
  desk_begin_collating(desk, 5);
  write_answer(&fixture, slot, ANSWER_BATCH, 1);
  desk_end_batch(desk, slot, 8, 1000);
  arrive(&fixture, slot);
  const struct slot_times *times = &fixture.ledger->entries[slot].times;
  struct worker_clock *clock = &segment_worker(fixture.base, &fixture.geometry, 0)->clock;
  CHECK_EQUAL(3, times->longest_position);
  CHECK_EQUAL(14, times->longest_index);
  CHECK_EQUAL(8, times->blocked_ns);
  CHECK_EQUAL(5, times->blocked_fetching_ns);
  CHECK_EQUAL(times->fetched_ns - taken_ns - 5, words_load(&clock->fetching_ns));
  CHECK_EQUAL(times->written_ns - times->fetched_ns - 3, words_load(&clock->collating_ns));
  CHECK_EQUAL(1000, words_load(&clock->bytes));
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
  struct histogram long_run = {.buckets = {UINT32_MAX}};
  histogram_add(&long_run, 0);
  CHECK_EQUAL(UINT64_C(1) << 32, long_run.buckets[0]);
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

/* SPDX-License-Identifier: BSD-3-Clause */

/* A slot's way through its states, and that a refused move changes nothing. */

#include "check.h"
#include "fixture.h"
#include "seats.h"

TEST(order_reaches_the_worker) {
  CLOSED struct fixture fixture = fixture_open(2, 2, 2, 20);
  struct worker_block *block = segment_worker(fixture.base, &fixture.geometry, 1);
  const int64_t indices[] = {5, -1, INT64_MAX};
  int64_t slot = ledger_place(fixture.ledger, 1, UINT64_MAX - 1, REQUEST_INDICES, indices,
                              sizeof indices, ORDER_COPY_IN);
  CHECK_EQUAL(1, atomic_load(&block->doorbell.rings));
  take(&fixture, 1, (uint32_t)slot);
  const struct slot_order *order = order_of(&fixture, (uint32_t)slot);
  CHECK_EQUAL(UINT64_MAX - 1, order->ticket);
  CHECK_EQUAL(REQUEST_INDICES, order->request_kind);
  CHECK_EQUAL(sizeof indices, order->request_bytes);
  CHECK_EQUAL(ORDER_COPY_IN, order->mode);
  CHECK_EQUAL(pages(1), order->pages_bytes);
  CHECK_EQUAL(pages(10), atomic_load(&order->grant_bytes));
  CHECK_EQUAL(0, atomic_load(&order->refused_bytes));
  const uint8_t *request = fixture.base + segment_slot_offset(&fixture.geometry, (uint32_t)slot);
  CHECK(memcmp(request, indices, sizeof indices) == 0);
  uint32_t cell;
  CHECK(!desk_take(&fixture.desks[0], &cell));
}

static void check_place_refused(struct fixture *fixture, int64_t expected, uint64_t bytes) {
  static const uint8_t request[8];
  uint64_t before_bytes = fixture->ledger->committed_bytes;
  uint32_t before_free = fixture->ledger->free_count, cell;
  CHECK_EQUAL(expected,
              ledger_place(fixture->ledger, 0, 9, REQUEST_PICKLED, request, bytes, 0));
  CHECK_EQUAL(before_bytes, fixture->ledger->committed_bytes);
  CHECK_EQUAL(before_free, fixture->ledger->free_count);
  CHECK(!desk_take(&fixture->desks[0], &cell));
  check_ledger(fixture->ledger);
  check_resident(fixture->ledger);
}

/* The request is too large, or the file cannot be given pages: its descriptor may not write. */
TEST(place_without_room_is_refused) {
  CLOSED struct fixture fixture = fixture_open(1, 2, 2, 100);
  check_place_refused(&fixture, -E2BIG, fixture.geometry.range_bytes + 1);
  refuse_pages(&fixture, true);
  check_place_refused(&fixture, -EBADF, 8);
  refuse_pages(&fixture, false);
  place(&fixture, 0, 0);
}

TEST(slot_freed_last_is_placed_first) {
  CLOSED struct fixture fixture = fixture_open(1, 3, 3, 100);
  uint32_t slots[3];
  for (uint64_t i = 0; i < 3; i++) slots[i] = place(&fixture, 0, i);
  for (uint32_t i = 0; i < 3; i++) CHECK_EQUAL(i, slots[i]);
  ledger_free(fixture.ledger, 0);
  ledger_free(fixture.ledger, 2);
  CHECK_EQUAL(2, place(&fixture, 0, 3));
  CHECK_EQUAL(0, place(&fixture, 0, 4));
  for (uint32_t i = 0; i < 3; i++) ledger_free(fixture.ledger, i);
}

TEST(oldest_is_the_lowest_undelivered_ticket) {
  CLOSED struct fixture fixture = fixture_open(1, 4, 4, 100);
  uint32_t leased = ready_slot(&fixture, 1, 1);
  struct lease *lease = ledger_lease(fixture.ledger, leased, 1);
  uint32_t ready = ready_slot(&fixture, 5, 1);
  uint32_t placed = place(&fixture, 0, 3);
  CHECK_EQUAL(3, ledger_oldest(fixture.ledger));
  ledger_free(fixture.ledger, placed);
  CHECK_EQUAL(5, ledger_oldest(fixture.ledger));
  ledger_free(fixture.ledger, ready);
  CHECK_EQUAL(UINT64_MAX, ledger_oldest(fixture.ledger));
  drop_and_collect(&fixture, lease);
}

/* All ranges placed with one worker, and the control values behind them. */
TEST(task_ring_holds_every_slot_and_more) {
  enum { SLOTS = 24 }; /* plus 8 is a power of two: no cell to spare */
  CLOSED struct fixture fixture = fixture_open(1, SLOTS, SLOTS, 100);
  uint32_t cell;
  for (uint64_t i = 0; i < SLOTS; i++) place(&fixture, 0, i);
  for (int i = 0; i < 7; i++) CHECK(ledger_tell(fixture.ledger, 0, VERB_RESUME));
  CHECK(ledger_tell(fixture.ledger, 0, VERB_QUIT));
  CHECK(!ledger_tell(fixture.ledger, 0, VERB_QUIT));
  for (uint32_t slot = 0; slot < SLOTS; slot++) take(&fixture, 0, slot);
  for (int i = 0; i < 7; i++) {
    CHECK(desk_take(&fixture.desks[0], &cell));
    CHECK_EQUAL(VERB_RESUME, cell_verb(cell));
  }
  CHECK(desk_take(&fixture.desks[0], &cell));
  CHECK_EQUAL(VERB_QUIT, cell_verb(cell));
  CHECK(!desk_take(&fixture.desks[0], &cell));
}

/* Each worker is looked at in turn, even if one of them has many messages. */
TEST(receiving_goes_round) {
  static const uint32_t expected[] = {0, 1, 2, 0, 2, 0, 0};
  static const uint32_t sent[] = {0, 0, 0, 0, 1, 2, 2};
  CLOSED struct fixture fixture = fixture_open(3, 1, 1, 100);
  struct news news;
  for (size_t i = 0; i < LENGTH(sent); i++) {
    CHECK(desk_tell(&fixture.desks[sent[i]], VERB_RESUMED, 0));
  }
  for (size_t i = 0; i < LENGTH(expected); i++) receive(&fixture, expected[i], VERB_RESUMED, 0);
  CHECK(!ledger_receive(fixture.ledger, &news));
}

/* Bring slot 0 of a fresh ledger of 2 slots and 2 spares into a state. */
static struct lease *bring_to(struct fixture *fixture, enum slot_state state, uint8_t *marks) {
  if (state == SLOT_FREE) return NULL;
  if (state == SLOT_PLACED) place(fixture, 0, 0);
  if (state == SLOT_PLACED) return NULL;
  uint32_t slot = place(fixture, 0, 0);
  take(fixture, 0, slot);
  write_answer(fixture, slot, ANSWER_BATCH, 1);
  if (state == SLOT_RETIRED) answer_of(fixture, slot)->flags = ANSWER_KEPT;
  arrive(fixture, slot);
  if (state == SLOT_READY) return NULL;
  struct lease *lease = ledger_lease(fixture->ledger, slot, 1);
  if (state == SLOT_LEASED) return lease;
  if (state == SLOT_FORKED) ledger_mark_child(fixture->ledger, marks);
  drop_and_collect(fixture, lease);
  return NULL;
}

static void check_untouched(struct fixture *fixture, uint32_t slot, uint32_t state,
                            uint32_t free_count) {
  if (slot < fixture->geometry.ranges) CHECK_EQUAL(state, state_of(fixture, slot));
  CHECK_EQUAL(free_count, fixture->ledger->free_count);
  check_ledger(fixture->ledger);
}

/* Each move in each state that it does not start from, and for slots that do not exist. */
static void refuse_all_but(struct fixture *fixture, uint32_t slot, uint32_t state) {
  struct ledger *ledger = fixture->ledger;
  uint32_t free_count = ledger->free_count;
  bool ready = state == SLOT_READY, placed = state == SLOT_PLACED;
  if (!ready) CHECK(ledger_open(ledger, slot) == NULL);
  if (!ready) CHECK(ledger_lease(ledger, slot, 1) == NULL);
  if (ready) CHECK(ledger_lease(ledger, slot, 0) == NULL);
  if (!ready && !placed) CHECK(!ledger_free(ledger, slot));
  if (!placed) CHECK(!ledger_grant(ledger, slot, pages(10)));
  CHECK(!ledger_refuse(ledger, slot)); /* placed, but it wants nothing */
  check_untouched(fixture, slot, state, free_count);
}

TEST(wrong_states_are_refused) {
  static const enum slot_state states[] = {SLOT_FREE,   SLOT_PLACED,  SLOT_READY,
                                           SLOT_LEASED, SLOT_RETIRED, SLOT_FORKED};
  static const uint32_t missing[] = {4, 5, SLOTS_MAX, UINT32_MAX};
  for (size_t i = 0; i < LENGTH(states); i++) {
    uint8_t marks[4] = {0};
    CLOSED struct fixture fixture = fixture_open(1, 2, 4, 100);
    struct lease *lease = bring_to(&fixture, states[i], marks);
    refuse_all_but(&fixture, 0, states[i]);
    refuse_all_but(&fixture, 3, SLOT_SPARE);
    for (size_t j = 0; j < LENGTH(missing); j++) refuse_all_but(&fixture, missing[j], SLOT_STATES);
    if (lease != NULL) lease_drop(lease);
    ledger_restart(fixture.ledger);
    ledger_unmark_child(fixture.ledger, marks);
  }
}

/* A slot on the stack of released ones that is not leased is no lease's end. */
TEST(released_slot_that_is_not_leased_stays) {
  CLOSED struct fixture fixture = fixture_open(1, 2, 2, 100);
  uint32_t slot = ready_slot(&fixture, 0, 1);
  atomic_store(&fixture.ledger->entries[slot].next_released, 0);
  atomic_store(&fixture.ledger->released, slot + 1);
  ledger_collect(fixture.ledger);
  CHECK_EQUAL(SLOT_READY, state_of(&fixture, slot));
}

TEST(workers_and_requests_that_do_not_exist_are_refused) {
  static const uint32_t missing[] = {1, 2, UINT32_MAX};
  CLOSED struct fixture fixture = fixture_open(1, 1, 1, 100);
  for (size_t i = 0; i < LENGTH(missing); i++) {
    CHECK_EQUAL(-EINVAL, ledger_place(fixture.ledger, missing[i], 0, REQUEST_INDEX, "", 0, 0));
    CHECK(!ledger_tell(fixture.ledger, missing[i], VERB_RESUME));
    ledger_reclaim(fixture.ledger, missing[i]);
  }
  CHECK_EQUAL(-EINVAL, ledger_place(fixture.ledger, 0, 0, (enum request_kind)0, "", 0, 0));
  CHECK_EQUAL(-EINVAL, ledger_place(fixture.ledger, 0, 0, (enum request_kind)6, "", 0, 0));
  check_untouched(&fixture, 0, SLOT_FREE, 1);
}

/* A smaller grant would leave pages uncounted, a larger one reach into the next range. */
TEST(grant_only_rises_within_the_range) {
  CLOSED struct fixture fixture = fixture_open(1, 1, 1, 100);
  uint32_t slot = place(&fixture, 0, 0);
  uint64_t grant_bytes = atomic_load(&order_of(&fixture, slot)->grant_bytes);
  CHECK(!ledger_grant(fixture.ledger, slot, grant_bytes - pages(1)));
  CHECK(!ledger_grant(fixture.ledger, slot, fixture.geometry.range_bytes + 1));
  CHECK(!ledger_grant(fixture.ledger, slot, UINT64_MAX));
  CHECK_EQUAL(grant_bytes, atomic_load(&order_of(&fixture, slot)->grant_bytes));
  CHECK(ledger_grant(fixture.ledger, slot, grant_bytes));
}

/* If no worker was free, one that takes its seat is news, and seats_freest finds it. */
TEST(worker_that_sits_down_is_found) {
  CLOSED struct fixture fixture = fixture_open(2, 2, 2, 100);
  CHECK_EQUAL(-1, seats_freest(fixture.ledger, 1));
  CHECK(!ledger_has_news(fixture.ledger));
  fixture.desks[0].view.pid = 7;
  desk_show(&fixture.desks[0], WORKER_IDLE, 0);
  CHECK(ledger_has_news(fixture.ledger));
  CHECK_EQUAL(0, seats_freest(fixture.ledger, 1));
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* The budget: shares, grants, wants, refusals and trimming, with the arithmetic spelled out. */

#include "check.h"
#include "fixture.h"
#include "seats.h"

static uint64_t grant_of(struct fixture *fixture, uint32_t slot) {
  return order_grant(order_of(fixture, slot));
}

static struct ledger_entry *entry_of(struct fixture *fixture, uint32_t slot) {
  return &fixture->ledger->entries[slot];
}

static void check_committed(const struct fixture *fixture, uint64_t page_count) {
  check_ledger(fixture->ledger);
  CHECK_EQUAL(pages(page_count), fixture->ledger->committed_bytes);
}

/* The worker says that its batch needs more, and how much. */
static void want(struct fixture *fixture, uint32_t slot, uint64_t page_count) {
  answer_of(fixture, slot)->ticket = order_of(fixture, slot)->ticket;
  answer_of(fixture, slot)->want_bytes = pages(page_count);
  CHECK(desk_tell(&fixture->desks[0], VERB_WANT, slot));
  receive(fixture, 0, VERB_WANT, slot);
}

/* The worker writes its batch to a slot placed before, and the trainer receives it. */
static void answer(struct fixture *fixture, uint32_t slot, uint64_t page_count) {
  take(fixture, 0, slot);
  deliver(fixture, slot, ANSWER_BATCH, page_count);
}

/* 10 pages for 3 slots: 3 pages each, the tenth is unused. */
TEST(share_is_an_equal_part_in_whole_pages) {
  CLOSED struct fixture fixture = fixture_open(1, 3, 6, 10);
  CHECK_EQUAL(pages(3), fixture.ledger->share_bytes);
  for (uint32_t i = 0; i < 3; i++) {
    uint32_t slot = place(&fixture, 0, i);
    CHECK_EQUAL(pages(3), grant_of(&fixture, slot));
    CHECK_EQUAL(pages(1), order_of(&fixture, slot)->pages_bytes);
    check_committed(&fixture, 3 * (i + 1));
  }
}

TEST(share_is_at_most_a_range) {
  CLOSED struct fixture fixture = fixture_open(1, 1, 1, 100000);
  CHECK_EQUAL(HUGE_BYTES, grant_of(&fixture, place(&fixture, 0, 0)));
}

/* Leases hold 7 of 10 pages: the last slot is granted the 3 that are left, not its share of 5. */
TEST(grant_is_what_leases_leave) {
  CLOSED struct fixture fixture = fixture_open(1, 2, 2, 10);
  uint32_t held = place(&fixture, 0, 0);
  want(&fixture, held, 7);
  ledger_grant(fixture.ledger, held, pages(7));
  answer(&fixture, held, 7);
  uint32_t slot = place(&fixture, 0, 1);
  CHECK_EQUAL(pages(3), grant_of(&fixture, slot));
  check_committed(&fixture, 10);
}

/* With nothing left, a slot is granted its request and no more: the one excess of placing. */
TEST(request_is_granted_whatever_is_left) {
  static const uint8_t request[3 * 65536];
  CLOSED struct fixture fixture = fixture_open(1, 2, 2, 10);
  uint32_t held = place(&fixture, 0, 0);
  ledger_grant(fixture.ledger, held, pages(10));
  int64_t slot = ledger_place(fixture.ledger, 0, 1, REQUEST_PICKLED, request, pages(3), 0);
  CHECK_EQUAL(pages(3), grant_of(&fixture, (uint32_t)slot));
  check_committed(&fixture, 13);
}

/* A warm slot keeps its pages, even above its share. */
TEST(warm_slot_is_granted_its_pages) {
  CLOSED struct fixture fixture = fixture_open(1, 2, 2, 20);
  uint32_t slot = place(&fixture, 0, 0);
  want(&fixture, slot, 14);
  CHECK_EQUAL(pages(20), budget_room(fixture.ledger, slot, pages(14)));
  ledger_grant(fixture.ledger, slot, pages(14));
  answer(&fixture, slot, 14);
  ledger_free(fixture.ledger, slot);
  CHECK_EQUAL(slot, place(&fixture, 0, 1));
  CHECK_EQUAL(pages(14), grant_of(&fixture, slot));
  CHECK_EQUAL(pages(14), order_of(&fixture, slot)->pages_bytes);
  check_committed(&fixture, 14);
}

/* A smaller want of the same order is a new question: an error must still find room. */
TEST(smaller_want_follows_a_refused_one) {
  CLOSED struct fixture fixture = fixture_open(1, 2, 2, 10);
  uint32_t slot = place(&fixture, 0, 0);
  want(&fixture, slot, 15);
  ledger_refuse(fixture.ledger, slot);
  want(&fixture, slot, 6);
  CHECK(order_refused(order_of(&fixture, slot)) != pages(6));
  CHECK_EQUAL(1, fixture.ledger->wanting);
  ledger_grant(fixture.ledger, slot, pages(6));
  CHECK_EQUAL(pages(6), grant_of(&fixture, slot));
  CHECK_EQUAL(0, fixture.ledger->wanting);
  answer(&fixture, slot, 6);
}

TEST(refusal_is_told_and_forgotten) {
  CLOSED struct fixture fixture = fixture_open(1, 1, 1, 10);
  struct worker_block *block = segment_worker(fixture.base, &fixture.geometry, 0);
  uint32_t slot = place(&fixture, 0, 0);
  want(&fixture, slot, 15);
  uint32_t rings = atomic_load(&block->doorbell.rings);
  ledger_refuse(fixture.ledger, slot);
  CHECK_EQUAL(rings + 1, atomic_load(&block->doorbell.rings));
  CHECK_EQUAL(pages(15), order_refused(order_of(&fixture, slot)));
  CHECK_EQUAL(pages(10), grant_of(&fixture, slot));
  CHECK_EQUAL(0, fixture.ledger->wanting);
  answer(&fixture, slot, 1);
  ledger_free(fixture.ledger, slot);
  CHECK_EQUAL(slot, place(&fixture, 0, 1));
  CHECK_EQUAL(0, order_refused(order_of(&fixture, slot)));
}

/* The oldest ticket may exceed the budget: the grants of others go down to their requests. */
TEST(grant_beyond_the_budget_is_counted) {
  CLOSED struct fixture fixture = fixture_open(1, 2, 2, 10);
  uint32_t oldest = place(&fixture, 0, 0);
  ledger_grant(fixture.ledger, oldest, pages(50));
  check_committed(&fixture, 50);
  uint32_t other = place(&fixture, 0, 1);
  CHECK_EQUAL(pages(1), grant_of(&fixture, other));
  CHECK_EQUAL(0, budget_room(fixture.ledger, other, pages(2)));
  check_committed(&fixture, 51);
  answer(&fixture, oldest, 50);
  check_committed(&fixture, 51);
  ledger_free(fixture.ledger, oldest);
  CHECK_EQUAL(pages(10), budget_room(fixture.ledger, other, pages(2)));
  check_committed(&fixture, 1);
  ledger_restart(fixture.ledger);
  check_resident(fixture.ledger);
}

/* Slots 0, 1, 2 with 4 pages each, freed in the order 1, 0, 2: slot 1 is the coldest. */
static struct fixture fixture_with_free_pages(void) {
  static const uint32_t order[] = {1, 0, 2};
  struct fixture fixture = fixture_open(1, 4, 4, 20);
  for (uint32_t i = 0; i < 3; i++) CHECK_EQUAL(i, ready_slot(&fixture, i, 4));
  for (uint32_t i = 0; i < 3; i++) ledger_free(fixture.ledger, order[i]);
  /* The fourth slot was never placed and lies below them all. */
  check_committed(&fixture, 12);
  return fixture;
}

TEST(trimming_takes_the_coldest_slots_first) {
  CLOSED struct fixture fixture = fixture_with_free_pages();
  CHECK_EQUAL(2, place(&fixture, 0, 9)); /* granted 5: 4 + 4 + 5 */
  check_committed(&fixture, 13);
  CHECK_EQUAL(pages(12), budget_room(fixture.ledger, 2, pages(12)));
  CHECK_EQUAL(pages(4), entry_of(&fixture, 1)->pages_bytes);
  CHECK_EQUAL(pages(16), budget_room(fixture.ledger, 2, pages(13)));
  CHECK_EQUAL(0, entry_of(&fixture, 1)->pages_bytes);
  CHECK_EQUAL(pages(4), entry_of(&fixture, 0)->pages_bytes);
  CHECK_EQUAL(pages(20), budget_room(fixture.ledger, 2, pages(20)));
  CHECK_EQUAL(0, entry_of(&fixture, 0)->pages_bytes);
  check_committed(&fixture, 5);
  ledger_restart(fixture.ledger);
  check_resident(fixture.ledger);
}

/* A slot that is short of room when it is placed gives its own pages back. */
TEST(placing_gives_back_pages_above_the_grant) {
  CLOSED struct fixture fixture = fixture_open(1, 2, 2, 10);
  uint32_t slot = place(&fixture, 0, 0);
  ledger_grant(fixture.ledger, slot, pages(8));
  answer(&fixture, slot, 8);
  ledger_free(fixture.ledger, slot);
  ledger_place(fixture.ledger, 0, 1, REQUEST_INDEX, &(int64_t){1}, 8, 0);
  CHECK_EQUAL(pages(8), grant_of(&fixture, slot));
  uint32_t other = place(&fixture, 0, 2);
  ledger_grant(fixture.ledger, other, pages(7));
  ledger_free(fixture.ledger, slot);
  CHECK_EQUAL(slot, place(&fixture, 0, 3));
  CHECK_EQUAL(pages(3), grant_of(&fixture, slot));
  CHECK_EQUAL(pages(3), order_of(&fixture, slot)->pages_bytes);
  check_committed(&fixture, 10);
  ledger_restart(fixture.ledger);
  check_resident(fixture.ledger);
}

/* Pages that the machine does not take back stay counted. */
TEST(pages_that_stay_are_counted) {
  CLOSED struct fixture fixture = fixture_with_free_pages();
  refuse_pages(&fixture, true);
  uint32_t slot = place(&fixture, 0, 9);
  CHECK_EQUAL(pages(12), budget_room(fixture.ledger, slot, pages(20)));
  check_committed(&fixture, 13);
  refuse_pages(&fixture, false);
  ledger_restart(fixture.ledger);
  check_resident(fixture.ledger);
}

/* The first batch says how large a batch probably is; no order says more than its grant. */
TEST(expectation_is_learnt_from_the_first_batch) {
  CLOSED struct fixture fixture = fixture_open(1, 2, 2, 10);
  uint32_t slot = place(&fixture, 0, 0);
  CHECK_EQUAL(0, order_of(&fixture, slot)->expect_bytes);
  answer(&fixture, slot, 4);
  CHECK_EQUAL(pages(4), fixture.ledger->demand.ahead_bytes);
  uint32_t other = place(&fixture, 0, 1);
  CHECK_EQUAL(pages(4), order_of(&fixture, other)->expect_bytes);
  ledger_grant(fixture.ledger, other, pages(9));
  ledger_free(fixture.ledger, slot);
  CHECK_EQUAL(slot, place(&fixture, 0, 2));
  CHECK_EQUAL(pages(1), order_of(&fixture, slot)->expect_bytes);
}

TEST(error_teaches_no_expectation) {
  CLOSED struct fixture fixture = fixture_open(1, 1, 1, 10);
  take(&fixture, 0, place(&fixture, 0, 0));
  deliver(&fixture, 0, ANSWER_ERROR, 2);
  CHECK_EQUAL(0, fixture.ledger->demand.ahead_bytes);
}

TEST(as_many_share_as_was_said) {
  CLOSED struct fixture fixture = fixture_open(4, 4, 4, 100);
  CHECK_EQUAL(4, segment_sharers(fixture.base, &fixture.geometry));
  seats_share(fixture.ledger, 2);
  CHECK_EQUAL(2, segment_sharers(fixture.base, &fixture.geometry));
  seats_share(fixture.ledger, 99); /* nonsense moves no bound */
  CHECK_EQUAL(4, segment_sharers(fixture.base, &fixture.geometry));
  ledger_restart(fixture.ledger);
  CHECK_EQUAL(4, segment_sharers(fixture.base, &fixture.geometry));
}

/* A batch stays in its slot unless its worker kept it, or slots or bytes would run short. */
TEST(batch_leaves_for_the_first_reason) {
  CLOSED struct fixture fixture = fixture_open(1, 5, 5, 100);
  struct ledger *ledger = fixture.ledger;
  uint32_t slot = come_slot(&fixture, 0);
  CHECK_EQUAL(BUDGET_LACKS_NOTHING, budget_lack(ledger, slot, 4, false));
  CHECK_EQUAL(BUDGET_FEW_SLOTS, budget_lack(ledger, slot, 5, false));
  CHECK_EQUAL(BUDGET_LACKS_NOTHING, budget_lack(ledger, slot, 5, true));
  ledger->wanting++;
  CHECK_EQUAL(BUDGET_FEW_BYTES, budget_lack(ledger, slot, 4, false));
  CHECK_EQUAL(BUDGET_FEW_SLOTS, budget_lack(ledger, slot, 5, false));
  ledger->wanting--;
  ledger->entries[slot].answer.flags = ANSWER_KEPT;
  CHECK_EQUAL(BUDGET_KEPT, budget_lack(ledger, slot, 5, false));
}

/* A batch stays as long as the reserved batches of its size find room beside it. */
TEST(bytes_of_the_reserve_are_not_kept) {
  const uint64_t cases[][2] = {
      {99, 1000 - 3 * 100},  /* this batch and the two that are reserved */
      {249, 1000 - 3 * 250}, /* four fit, so two of them beside this one */
      {299, 1000 - 2 * 300}, /* three fit: at least one beside this one */
      {499, 0},
  };
  for (size_t i = 0; i < LENGTH(cases); i++) {
    struct ledger_entry entry = {.pages_bytes = cases[i][0]};
    struct ledger ledger = {.entries = &entry, .ring_bytes = 1000, .kept_bytes = cases[i][1]};
    CHECK_EQUAL(BUDGET_LACKS_NOTHING, budget_lack(&ledger, 0, 2, true));
    ledger.kept_bytes++;
    CHECK_EQUAL(BUDGET_FEW_BYTES, budget_lack(&ledger, 0, 2, true));
  }
}

/*
 * 24 slots of 2 MiB: 6 are ready, 4 are placed, 14 are free. One worker writes one batch of a MiB;
 * if sizes are steady all that are placed will be filled. Then slack, and an eighth less than that.
 */
TEST(free_slots_keep_what_is_needed) {
  const uint64_t mib = UINT64_C(1) << 20;
  const uint64_t steady_and_left[][2] = {
      {0, 28 * mib}, /* 13 and 20, less 4.1, so ten slots too many */
      {1, 30 * mib}, /* 16 and 20, less 4.5, so nine */
  };
  for (size_t i = 0; i < LENGTH(steady_and_left); i++) {
    CLOSED struct fixture fixture = fixture_open(1, 24, 24, 24 * HUGE_BYTES / pages(1));
    struct ledger *ledger = fixture.ledger;
    for (uint32_t ticket = 0; ticket < 24; ticket++) {
      ready_slot(&fixture, ticket, HUGE_BYTES / pages(1));
    }
    for (uint32_t slot = 6; slot < 24; slot++) CHECK(ledger_free(ledger, slot));
    for (uint32_t ticket = 24; ticket < 28; ticket++) place(&fixture, 0, ticket);
    CHECK_EQUAL(48 * mib, ledger->existing_bytes);
    ledger->demand.mean_bytes = mib;
    ledger->demand.keep_bytes = steady_and_left[i][0];
    ledger->slack_bytes = 20 * mib;
    budget_shed(ledger);
    CHECK_EQUAL(steady_and_left[i][1], ledger->existing_bytes);
    CHECK_EQUAL(steady_and_left[i][1], resident(&fixture));
  }
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* What is learnt of batches, and which pages and slots there are because of it. */

#include "check.h"
#include "fixture.h"
#include "budget.h"

#define MEGABYTE (UINT64_C(1) << 20)
#define FULL_PAGES (2 * MEGABYTE / 4096) /* of a fixture's range */

static struct demand demand_of(const uint64_t *sizes, size_t count) {
  struct demand demand = {.batches = 0};
  for (size_t i = 0; i < count; i++) demand_note(&demand, sizes[i]);
  return demand;
}

TEST(equal_sizes_are_known) {
  static const uint64_t sizes[] = {700, 700, 700, 700, 700};
  for (size_t count = 1; count <= LENGTH(sizes); count++) {
    struct demand demand = demand_of(sizes, count);
    CHECK_EQUAL(700, demand.ahead_bytes);
    CHECK_EQUAL(700, demand.keep_bytes);
    CHECK(demand.mean_bytes > 690 && demand.mean_bytes <= 700);
  }
}

/* The next batch probably needs the smaller size, and what waits for it may be the larger. */
TEST(sizes_within_twice_are_steady) {
  static const uint64_t sizes[] = {100, 200, 150, 190};
  struct demand demand = demand_of(sizes, LENGTH(sizes));
  CHECK_EQUAL(150, demand.ahead_bytes);
  CHECK_EQUAL(200, demand.keep_bytes);
}

TEST(last_batch_of_an_epoch_may_be_small) {
  static const uint64_t sizes[] = {800, 800, 800, 800, 800, 800, 800, 10};
  struct demand demand = demand_of(sizes, LENGTH(sizes));
  CHECK_EQUAL(800, demand.ahead_bytes);
  CHECK_EQUAL(800, demand.keep_bytes);
}

TEST(one_large_batch_makes_sizes_unsteady) {
  static const uint64_t sizes[] = {10, 10, 10, 800};
  struct demand demand = demand_of(sizes, LENGTH(sizes));
  CHECK_EQUAL(0, demand.ahead_bytes);
  CHECK_EQUAL(0, demand.keep_bytes);
}

/* The last sizes count, not those of long ago. */
TEST(unsteady_sizes_are_forgotten) {
  struct demand demand = {.batches = 0};
  for (int i = 0; i < 16; i++) demand_note(&demand, i % 2 ? 10 : 800);
  CHECK_EQUAL(0, demand.keep_bytes);
  for (int i = 0; i < 16; i++) demand_note(&demand, 300);
  CHECK_EQUAL(300, demand.keep_bytes);
}

TEST(peak_is_forgotten_after_two_windows) {
  struct demand demand = {.batches = 0};
  demand_rise(&demand, 900);
  demand_rise(&demand, 500);
  for (int i = 0; i < 63; i++) {
    demand_rise(&demand, 40);
    demand_note(&demand, 1);
    CHECK_EQUAL(900, demand_peak(&demand));
  }
  demand_note(&demand, 1);
  CHECK_EQUAL(40, demand_peak(&demand));
}

static void send(struct fixture *fixture, uint64_t first_ticket, uint64_t batches,
                 uint64_t batch_pages) {
  for (uint64_t i = 0; i < batches; i++) {
    ledger_free(fixture->ledger, ready_slot(fixture, first_ticket + i, batch_pages));
    check_ledger(fixture->ledger);
  }
}

static uint64_t recount(const struct ledger *ledger) {
  uint64_t total = 0;
  for (uint32_t i = 0; i < ledger->geometry.ranges; i++) total += ledger->entries[i].pages_bytes;
  CHECK_EQUAL(total, ledger->existing_bytes);
  return total;
}

/* A batch that outlives its epoch gives its pages back as its lease ends, if they are not needed. */
TEST(outliving_batch_gives_back_at_its_end) {
  static const struct { bool is_final, forks, stays; } cases[] = {
      {false, false, true}, {true, false, false}, {true, true, true}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct fixture fixture = fixture_open(1, 4, 4, 4 * FULL_PAGES);
    struct ledger *ledger = fixture.ledger;
    struct lease *held = ledger_lease(ledger, ready_slot(&fixture, 1, 8), 1);
    struct lease *in_time = ledger_lease(ledger, ready_slot(&fixture, 2, 8), 1);
    lease_drop(in_time);
    ledger_rest_leased(ledger, cases[i].is_final);
    ledger_rest(ledger, cases[i].is_final);
    if (cases[i].forks) ledger_note_fork();
    uint64_t in_use = pages(cases[i].is_final ? 8 : 16);
    CHECK_EQUAL(in_use, resident(&fixture));
    CHECK_EQUAL(1, *trainer_slot(&fixture, held->slot));
    lease_drop(held);
    CHECK_EQUAL(cases[i].stays ? in_use : 0, resident(&fixture));
    /* It is free in the next epoch, with what it has. */
    ledger_collect(ledger);
    CHECK_EQUAL(4, ledger->free_count);
    CHECK_EQUAL(resident(&fixture), recount(ledger));
    check_resident(ledger);
    CHECK_EQUAL(3, *trainer_slot(&fixture, ready_slot(&fixture, 3, 8)));
    fixture_close(&fixture);
  }
}

/* A batch of the next epoch in the same slot is no batch that outlived one. */
TEST(next_lease_of_the_slot_gives_nothing_back) {
  CLOSED struct fixture fixture = fixture_open(1, 1, 4, 4 * FULL_PAGES);
  struct lease *held = ledger_lease(fixture.ledger, ready_slot(&fixture, 0, 8), 1);
  ledger_rest_leased(fixture.ledger, true);
  drop_and_collect(&fixture, held);
  held = ledger_lease(fixture.ledger, ready_slot(&fixture, 1, 8), 1);
  lease_drop(held);
  CHECK_EQUAL(pages(8), resident(&fixture));
}

/* Hold this many batches at once, for as many batches as there are slots and `more`, then drop. */
static void hold(struct fixture *fixture, uint32_t held, uint64_t more, uint64_t *ticket) {
  struct lease *leases[8];
  uint32_t slots = fixture->ledger->slots;
  CHECK(held < slots && held <= LENGTH(leases));
  for (uint32_t i = 0; i < held; i++) {
    leases[i] = ledger_lease(fixture->ledger, ready_slot(fixture, (*ticket)++, 1), 1);
  }
  send(fixture, *ticket, slots + more, 1);
  *ticket += slots + more;
  for (uint32_t i = 0; i < held; i++) lease_drop(leases[i]);
  ledger_collect(fixture->ledger);
}

TEST(late_drops_are_worth_a_slot) {
  CLOSED struct fixture fixture = fixture_open(1, 4, 12, 100);
  uint64_t ticket = 0;
  CHECK(!ledger_grow(fixture.ledger));
  hold(&fixture, 2, 0, &ticket);
  CHECK(ledger_grow(fixture.ledger));
  CHECK_EQUAL(5, fixture.ledger->counts[SLOT_FREE]);
  CHECK(!ledger_grow(fixture.ledger)); /* what it was seen by is used up */
}

TEST(drops_that_are_early_or_very_late_are_not) {
  CLOSED struct fixture fixture = fixture_open(1, 4, 12, 100);
  uint64_t ticket = 0;
  for (int i = 0; i < 6; i++) {
    struct lease *lease = ledger_lease(fixture.ledger, ready_slot(&fixture, ticket++, 1), 1);
    drop_and_collect(&fixture, lease);
  }
  CHECK(!ledger_grow(fixture.ledger));
  hold(&fixture, 3, 100, &ticket);
  CHECK(!ledger_grow(fixture.ledger));
}

TEST(half_of_the_spares_are_for_retired_slots) {
  CLOSED struct fixture fixture = fixture_open(1, 4, 8, 100);
  uint64_t ticket = 0;
  for (int i = 0; i < 2; i++) {
    hold(&fixture, 3, 0, &ticket);
    CHECK(ledger_grow(fixture.ledger));
  }
  hold(&fixture, 3, 0, &ticket);
  CHECK(!ledger_grow(fixture.ledger));
  CHECK_EQUAL(2, fixture.ledger->counts[SLOT_SPARE]);
}

/* A child that lives long takes no slot from the workers; its slot is a spare when it is gone. */
TEST(forked_slot_is_replaced) {
  CLOSED struct fixture fixture = fixture_open(1, 3, 9, 100);
  uint8_t marks[9] = {0};
  struct lease *lease = ledger_lease(fixture.ledger, ready_slot(&fixture, 0, 1), 1);
  CHECK_EQUAL(1, ledger_mark_child(fixture.ledger, marks));
  drop_and_collect(&fixture, lease);
  CHECK_EQUAL(1, fixture.ledger->counts[SLOT_FORKED]);
  CHECK_EQUAL(3, fixture.ledger->counts[SLOT_FREE]);
  check_ledger(fixture.ledger);
  ledger_unmark_child(fixture.ledger, marks);
  CHECK_EQUAL(3, fixture.ledger->counts[SLOT_FREE]);
  CHECK_EQUAL(6, fixture.ledger->counts[SLOT_SPARE]);
  check_ledger(fixture.ledger);
  check_resident(fixture.ledger);
}

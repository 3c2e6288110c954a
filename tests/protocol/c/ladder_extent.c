/* SPDX-License-Identifier: BSD-3-Clause */

/* Extents: the addresses of memory behind a lease, from when it is made until it is given up. */

#include "check.h"
#include "extent.h"
#include "fixture.h"
#include "lease.h"

static uint8_t memory[3000];

TEST(extent_is_from_its_first_byte_to_its_last) {
  struct extent *extent = extent_enter(memory + 1000, 1000);
  CHECK(extent != NULL);
  CHECK(!extent_holds(memory + 999));
  CHECK(extent_holds(memory + 1000));
  CHECK(extent_holds(memory + 1999));
  CHECK(!extent_holds(memory + 2000));
  extent_leave(extent);
  CHECK(!extent_holds(memory + 1000));
  extent_leave(NULL);
}

/* Neighbours are told apart, whichever leaves first; the place of one that left is used again. */
TEST(neighbours_do_not_mix) {
  for (int first = 0; first < 2; first++) {
    struct extent *extents[2] = {extent_enter(memory, 100), extent_enter(memory + 100, 100)};
    extent_leave(extents[first]);
    CHECK_EQUAL(first == 1, extent_holds(memory + 50));
    CHECK_EQUAL(first == 0, extent_holds(memory + 150));
    extents[first] = extent_enter(memory + 200, 100);
    CHECK(extent_holds(memory + 250));
    CHECK_EQUAL(first == 1, extent_holds(memory + 50));
    CHECK_EQUAL(first == 0, extent_holds(memory + 150));
    for (int i = 0; i < 2; i++) extent_leave(extents[i]);
    CHECK(!extent_holds(memory + 50) && !extent_holds(memory + 150) && !extent_holds(memory + 250));
  }
}

/* Any number fits; those that leave make room, in any order. */
TEST(any_number_is_known) {
  enum { MANY = 1500 };
  static struct extent *extents[MANY];
  static bool is_there[MANY];
  uint64_t random = random_start(1);
  for (int i = 0; i < 4 * MANY; i++) {
    int at = i < MANY ? i : (int)random_below(&random, MANY);
    if (is_there[at]) extent_leave(extents[at]);
    else extents[at] = extent_enter(memory + 2 * at, 1);
    is_there[at] = !is_there[at];
    int other = (int)random_below(&random, MANY);
    CHECK_EQUAL(is_there[other], extent_holds(memory + 2 * other));
    CHECK(!extent_holds(memory + 2 * other + 1));
  }
  for (int i = 0; i < MANY; i++) {
    CHECK_EQUAL(is_there[i], extent_holds(memory + 2 * i));
    if (is_there[i]) extent_leave(extents[i]);
  }
}

TEST(block_is_known_until_its_last_alias) {
  struct lease *block = lease_block_new(100);
  uint8_t *start = lease_block_start(block);
  CHECK(extent_holds(start) && extent_holds(start + 99));
  CHECK(!extent_holds(start + 100) && !extent_holds(block));
  lease_take(block);
  lease_drop(block);
  CHECK(extent_holds(start));
  lease_drop(block);
  CHECK(!extent_holds(start));
}

/* A segment is known while a lease keeps it mapped, even if its owner has given it up. */
static void know_segment(bool guarded) {
  struct fixture fixture = fixture_open(1, 1, 1, 10);
  if (guarded) fixture_guard(&fixture);
  uint32_t slot = come_slot(&fixture, 7);
  struct lease *lease = ledger_lease(fixture.ledger, slot, 1);
  uint8_t *base = fixture.ledger->base;
  uint64_t bytes = fixture.geometry.total_bytes;
  CHECK(extent_holds(trainer_slot(&fixture, slot)));
  CHECK(extent_holds(base) && extent_holds(base + bytes - 1));
  CHECK(!extent_holds(base - 1) && !extent_holds(base + bytes));
  ledger_unref(fixture.ledger);
  CHECK(extent_holds(base));
  lease_drop(lease);
  CHECK(!extent_holds(base) && !extent_holds(base + bytes - 1));
  fixture_close_desks(&fixture);
}

TEST(segment_is_known_while_it_is_mapped) { know_segment(false); }
TEST(guarded_segment_is_known_until_its_end) { know_segment(true); }

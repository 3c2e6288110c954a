/* SPDX-License-Identifier: BSD-3-Clause */

/* Ends: slots that are retired or held for a child, dead workers, ledgers without an owner. */

#include "check.h"
#include "fixture.h"

static uint32_t count_of(const struct fixture *fixture, enum slot_state state) {
  return fixture->ledger->counts[state];
}

/* A READY slot whose worker said that it keeps an alias. */
static uint32_t kept_slot(struct fixture *fixture, uint64_t ticket) {
  uint32_t slot = place(fixture, 0, ticket);
  take(fixture, 0, slot);
  write_answer(fixture, slot, ANSWER_BATCH, 2);
  answer_of(fixture, slot)->flags = ANSWER_KEPT;
  arrive(fixture, slot);
  return slot;
}

static void release(struct fixture *fixture, uint32_t slot) {
  lease_drop(ledger_lease(fixture->ledger, slot, 1));
  ledger_collect(fixture->ledger);
  check_ledger(fixture->ledger);
}

TEST(kept_slot_is_retired_for_a_spare) {
  CLOSED struct fixture fixture = fixture_open(1, 1, 3, 100);
  for (uint32_t i = 0; i < 2; i++) {
    CHECK_EQUAL(i, kept_slot(&fixture, i));
    release(&fixture, i);
    CHECK_EQUAL(SLOT_RETIRED, state_of(&fixture, i));
    CHECK_EQUAL(SLOT_FREE, state_of(&fixture, i + 1));
  }
  CHECK_EQUAL(0, count_of(&fixture, SLOT_SPARE));
  check_resident(fixture.ledger);
}

/* Even without a lease: the worker may keep an answer that was discarded. */
TEST(kept_slot_is_retired_when_it_is_freed) {
  CLOSED struct fixture fixture = fixture_open(1, 1, 2, 100);
  ledger_free(fixture.ledger, kept_slot(&fixture, 0));
  CHECK_EQUAL(SLOT_RETIRED, state_of(&fixture, 0));
  CHECK_EQUAL(1, place(&fixture, 0, 1));
}

TEST(without_a_spare_a_slot_is_lost) {
  CLOSED struct fixture fixture = fixture_open(1, 2, 2, 100);
  release(&fixture, kept_slot(&fixture, 0));
  CHECK_EQUAL(1, count_of(&fixture, SLOT_FREE));
  CHECK_EQUAL(1, count_of(&fixture, SLOT_RETIRED));
}

/* A retired slot is no longer trimmed: another process may read its pages. */
TEST(retired_pages_stay) {
  CLOSED struct fixture fixture = fixture_open(1, 1, 2, 10);
  release(&fixture, kept_slot(&fixture, 0));
  uint32_t slot = place(&fixture, 0, 1);
  CHECK_EQUAL(pages(8), budget_room(fixture.ledger, slot, pages(10)));
  ledger_free(fixture.ledger, slot);
  ledger_restart(fixture.ledger);
  CHECK_EQUAL(SLOT_RETIRED, state_of(&fixture, 0));
  CHECK_EQUAL(pages(2), fixture.ledger->entries[0].pages_bytes);
  check_resident(fixture.ledger);
}

/* A slot that is leased at two forks waits for both children. */
TEST(held_slot_waits_for_every_child) {
  uint8_t first[2] = {0}, second[2] = {0};
  CLOSED struct fixture fixture = fixture_open(1, 2, 2, 100);
  struct lease *lease = ledger_lease(fixture.ledger, ready_slot(&fixture, 0, 1), 1);
  CHECK_EQUAL(1, ledger_mark_child(fixture.ledger, first));
  CHECK_EQUAL(1, ledger_mark_child(fixture.ledger, second));
  drop_and_collect(&fixture, lease);
  ledger_unmark_child(fixture.ledger, first);
  CHECK_EQUAL(SLOT_FORKED, state_of(&fixture, 0));
  check_ledger(fixture.ledger);
  ledger_unmark_child(fixture.ledger, second);
  CHECK_EQUAL(SLOT_FREE, state_of(&fixture, 0));
}

/* Forks that share their marks count once, and what was released between them is not marked. */
TEST(marks_may_be_shared) {
  uint8_t shared[2] = {0}, later[2] = {0};
  CLOSED struct fixture fixture = fixture_open(1, 2, 2, 100);
  struct lease *first = ledger_lease(fixture.ledger, ready_slot(&fixture, 0, 1), 1);
  CHECK_EQUAL(1, ledger_mark_child(fixture.ledger, shared));
  struct lease *second = ledger_lease(fixture.ledger, ready_slot(&fixture, 1, 1), 1);
  CHECK_EQUAL(1, ledger_mark_child(fixture.ledger, shared));
  drop_and_collect(&fixture, first);
  CHECK_EQUAL(1, ledger_mark_child(fixture.ledger, later));
  ledger_unmark_child(fixture.ledger, shared);
  CHECK_EQUAL(SLOT_FREE, state_of(&fixture, 0));
  CHECK_EQUAL(0, shared[0] + shared[1]);
  drop_and_collect(&fixture, second);
  CHECK_EQUAL(SLOT_FORKED, state_of(&fixture, 1));
  ledger_unmark_child(fixture.ledger, later);
  CHECK_EQUAL(2, count_of(&fixture, SLOT_FREE));
}

/* Where the end of a child cannot be seen, its slots are retired when they are released. */
TEST(unseen_child_retires_leased_slots) {
  CLOSED struct fixture fixture = fixture_open(1, 2, 3, 100);
  struct lease *lease = ledger_lease(fixture.ledger, ready_slot(&fixture, 0, 1), 1);
  uint32_t ready = ready_slot(&fixture, 1, 1);
  ledger_retire_leased(fixture.ledger);
  ledger_free(fixture.ledger, ready);
  CHECK_EQUAL(SLOT_FREE, state_of(&fixture, ready));
  drop_and_collect(&fixture, lease);
  CHECK_EQUAL(SLOT_RETIRED, state_of(&fixture, 0));
  CHECK_EQUAL(2, count_of(&fixture, SLOT_FREE));
}

TEST(held_slot_that_was_kept_is_retired) {
  uint8_t marks[2] = {0};
  CLOSED struct fixture fixture = fixture_open(1, 1, 2, 100);
  struct lease *lease = ledger_lease(fixture.ledger, kept_slot(&fixture, 0), 1);
  ledger_mark_child(fixture.ledger, marks);
  drop_and_collect(&fixture, lease);
  CHECK_EQUAL(SLOT_FORKED, state_of(&fixture, 0));
  ledger_unmark_child(fixture.ledger, marks);
  CHECK_EQUAL(SLOT_RETIRED, state_of(&fixture, 0));
  CHECK_EQUAL(SLOT_FREE, state_of(&fixture, 1));
}

/* If punching fails, pages that may exist are not counted before a worker has found them. */
TEST(unseen_pages_that_stay_are_counted_again) {
  CLOSED struct fixture fixture = fixture_open(1, 1, 1, 100);
  uint32_t slot = place(&fixture, 0, 1);
  uint64_t grant_bytes = atomic_load(&order_of(&fixture, slot)->grant_bytes);
  uint64_t offset = segment_slot_offset(&fixture.geometry, slot);
  CHECK_EQUAL(grant_bytes, platform_reserve(fixture.fd, offset, grant_bytes, pages(1)));
  refuse_pages(&fixture, true);
  ledger_reclaim(fixture.ledger, 0);
  refuse_pages(&fixture, false);
  check_ledger(fixture.ledger);
  CHECK(fixture.ledger->entries[slot].pages_bytes < grant_bytes);
  desk_init(&fixture.desks[0], fixture.base, fixture.fd, &fixture.geometry, 0); /* another worker */
  CHECK_EQUAL(slot, ready_slot(&fixture, 2, grant_bytes / pages(1)));
  check_resident(fixture.ledger);
}

/* The request of a worker that wants pages is forgotten with its slot, and with its answer. */
TEST(want_ends_with_the_order) {
  CLOSED struct fixture fixture = fixture_open(1, 1, 1, 10);
  for (int answers = 0; answers < 2; answers++) {
    uint32_t slot = place(&fixture, 0, 3 + (uint64_t)answers);
    take(&fixture, 0, slot);
    write_answer(&fixture, slot, ANSWER_BATCH, 1);
    answer_of(&fixture, slot)->want_bytes = pages(11);
    CHECK(desk_tell(&fixture.desks[0], VERB_WANT, slot));
    receive(&fixture, 0, VERB_WANT, slot);
    CHECK_EQUAL(1, fixture.ledger->wanting);
    if (answers) {
      arrive(&fixture, slot);
      CHECK_EQUAL(0, fixture.ledger->wanting);
    }
    ledger_free(fixture.ledger, slot);
    CHECK_EQUAL(0, fixture.ledger->wanting);
  }
}

/* A worker, or a child that was marked, may still read them. */
TEST(closed_ledger_leaves_read_slots_alone) {
  uint8_t marks[4] = {0};
  CLOSED struct fixture fixture = fixture_open(1, 3, 4, 100);
  struct lease *kept = ledger_lease(fixture.ledger, kept_slot(&fixture, 0), 1);
  struct lease *read = ledger_lease(fixture.ledger, ready_slot(&fixture, 1, 3), 1);
  ledger_mark_child(fixture.ledger, marks);
  fixture.ledger->entries[kept->slot].children = marks[kept->slot] = 0;
  struct lease *later = ledger_lease(fixture.ledger, ready_slot(&fixture, 2, 4), 1);
  ledger_close(fixture.ledger);
  lease_drop(kept);
  lease_drop(read);
  CHECK_EQUAL(pages(2 + 3 + 4), resident(&fixture));
  lease_drop(later);
  CHECK_EQUAL(pages(2 + 3), resident(&fixture));
}

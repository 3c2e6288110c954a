/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A guarded segment step by step: when the trainer's mapping of a slot is open, how a slot is
 * filled, and the canary behind a batch. The cases in which a guard ends the process are in
 * forks_guard.c.
 */

#include "debug/canary.h"
#include "check.h"
#include "fixture.h"
#include "debug/guard.h"

enum { POISON = 0xDB, PAYLOAD = GUARDED_PAYLOAD, LAYOUT = GUARDED_LAYOUT };

/* Returns True if this process may read a byte: the kernel is asked, which does not fault. */
static bool is_open(const uint8_t *byte) {
  int ends[2];
  CHECK_EQUAL(0, pipe(ends));
  bool readable = write(ends[1], byte, 1) == 1;
  CHECK(readable || errno == EFAULT, "errno %d", errno);
  close(ends[0]);
  close(ends[1]);
  return readable;
}

static struct fixture open_guarded(uint32_t slots, uint32_t ranges) {
  struct fixture fixture = fixture_open(1, slots, ranges, 100);
  fixture_guard(&fixture);
  return fixture;
}

TEST(slot_is_closed_until_it_is_opened) {
  CLOSED struct fixture fixture = open_guarded(2, 3);
  for (uint32_t slot = 0; slot < 3; slot++) CHECK(!is_open(trainer_slot(&fixture, slot)));
  uint32_t slot = sent_slot(&fixture, 0);
  CHECK(!is_open(trainer_slot(&fixture, slot)));
  receive(&fixture, 0, VERB_READY, slot);
  CHECK(!is_open(trainer_slot(&fixture, slot)));
  uint8_t *start = ledger_open(fixture.ledger, slot);
  CHECK(start == trainer_slot(&fixture, slot));
  CHECK(is_open(start));
  ledger_free(fixture.ledger, slot);
  CHECK(!is_open(start));
}

/* Of a leased slot the pages of its batch are open, and no more. */
TEST(leased_batch_is_open) {
  struct fixture fixture = open_guarded(1, 1);
  uint32_t slot = come_slot(&fixture, 0);
  struct lease *lease = ledger_lease(fixture.ledger, slot, 2);
  uint8_t *start = trainer_slot(&fixture, slot);
  start[0] = start[PAYLOAD - 1] = 7;
  CHECK(is_open(start + pages(1) - 1));
  CHECK(!is_open(start + pages(1)));
  lease_drop(lease);
  CHECK(is_open(start));
  lease_drop(lease);
  CHECK(!is_open(start));
  fixture_close_desks(&fixture);
  ledger_unref(fixture.ledger);
}

static void check_poisoned(struct fixture *fixture, uint32_t slot, uint64_t bytes) {
  const uint8_t *start = worker_slot(fixture, slot);
  for (uint64_t i = 0; i < bytes; i++) CHECK(start[i] == POISON, "byte %" PRIu64, i);
}

/* The used part of a slot is filled once it is free; the rest of its pages is unchanged. */
TEST(freed_slot_is_poisoned) {
  CLOSED struct fixture fixture = open_guarded(1, 1);
  uint32_t slot = come_slot(&fixture, 5);
  struct lease *lease = ledger_lease(fixture.ledger, slot, 1);
  lease_drop(lease);
  CHECK_EQUAL(5, worker_slot(&fixture, slot)[0]);
  ledger_collect(fixture.ledger);
  check_poisoned(&fixture, slot, PAYLOAD + LAYOUT + CANARY_BYTES);
  CHECK_EQUAL(5, worker_slot(&fixture, slot)[PAYLOAD + LAYOUT + CANARY_BYTES]);
  CHECK(!is_open(trainer_slot(&fixture, slot)));
  check_resident(fixture.ledger);
}

/* It is unknown how far a dead worker got: all pages are filled. */
TEST(reclaimed_slot_is_poisoned) {
  CLOSED struct fixture fixture = open_guarded(1, 1);
  uint32_t slot = place(&fixture, 0, 0);
  ledger_reclaim(fixture.ledger, 0);
  check_poisoned(&fixture, slot, pages(1));
  check_resident(fixture.ledger);
}

/* A child may read a held slot, so it is filled only when the child is gone; here it is closed. */
TEST(held_slot_is_poisoned_when_it_is_free) {
  uint8_t marks[1] = {0};
  CLOSED struct fixture fixture = open_guarded(1, 1);
  uint32_t slot = come_slot(&fixture, 5);
  struct lease *lease = ledger_lease(fixture.ledger, slot, 1);
  ledger_mark_child(fixture.ledger, marks);
  drop_and_collect(&fixture, lease);
  CHECK_EQUAL(SLOT_FORKED, state_of(&fixture, slot));
  CHECK_EQUAL(5, worker_slot(&fixture, slot)[0]);
  CHECK(!is_open(trainer_slot(&fixture, slot)));
  ledger_unmark_child(fixture.ledger, marks);
  check_poisoned(&fixture, slot, PAYLOAD);
}

TEST(retired_slot_is_never_poisoned) {
  CLOSED struct fixture fixture = open_guarded(1, 2);
  uint32_t slot = sent_slot(&fixture, 5);
  answer_of(&fixture, slot)->flags = ANSWER_KEPT;
  receive(&fixture, 0, VERB_READY, slot);
  ledger_free(fixture.ledger, slot);
  CHECK_EQUAL(SLOT_RETIRED, state_of(&fixture, slot));
  CHECK_EQUAL(5, worker_slot(&fixture, slot)[0]);
  CHECK(!is_open(trainer_slot(&fixture, slot)));
}

/* A byte behind the batch that is not as the worker's desk left it: the answer is refused. */
TEST(damaged_canary_is_refused) {
  const uint64_t at[] = {0, 1, CANARY_BYTES - 1};
  for (size_t i = 0; i < LENGTH(at); i++) {
    CLOSED struct fixture fixture = open_guarded(1, 1);
    uint32_t slot = sent_slot(&fixture, 9);
    worker_slot(&fixture, slot)[PAYLOAD + LAYOUT + at[i]] ^= 1;
    receive_broken(&fixture, "something was written beyond the end of its batch");
    CHECK_EQUAL(SLOT_PLACED, state_of(&fixture, slot));
    ledger_reclaim(fixture.ledger, 0);
  }
}

/* Neither the canary of another ticket, nor of another slot, nor of another place will do. */
TEST(canary_is_of_one_ticket_slot_and_place) {
  uint8_t canary[CANARY_BYTES + 1];
  for (uint32_t other = 0; other < 3; other++) {
    CLOSED struct fixture fixture = open_guarded(1, 1);
    uint32_t slot = sent_slot(&fixture, 9);
    canary_write(canary, sizeof canary, 9 + (other == 0), slot + (other == 1));
    memcpy(worker_slot(&fixture, slot) + PAYLOAD + LAYOUT, canary + (other == 2), CANARY_BYTES);
    receive_broken(&fixture, "something was written beyond the end of its batch");
    ledger_reclaim(fixture.ledger, 0);
  }
}

/* A batch whose pages went as its lease ended was not written to, and its slot gets none again. */
TEST(emptied_slot_stays_empty) {
  CLOSED struct fixture fixture = open_guarded(1, 1);
  struct lease *held = ledger_lease(fixture.ledger, come_slot(&fixture, 0), 1);
  ledger_rest_leased(fixture.ledger, true);
  lease_drop(held);
  CHECK_EQUAL(0, resident(&fixture));
  ledger_collect(fixture.ledger);
  CHECK_EQUAL(0, resident(&fixture));
  check_resident(fixture.ledger);
  ledger_free(fixture.ledger, come_slot(&fixture, 1));
}

/* A free slot rests as long as possible, so that a late use finds it closed. */
TEST(slot_freed_first_is_placed_first) {
  CLOSED struct fixture fixture = open_guarded(3, 3);
  for (uint64_t ticket = 0; ticket < 7; ticket++) {
    uint32_t slot = come_slot(&fixture, ticket);
    CHECK_EQUAL(ticket % 3, slot);
    ledger_free(fixture.ledger, slot);
  }
}

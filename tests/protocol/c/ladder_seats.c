/* SPDX-License-Identifier: BSD-3-Clause */

/* Which worker gets the next request, where it may be any; and who is there. */

#include "check.h"
#include "fixture.h"
#include "seats.h"

#define MANY 9

/* Sit down as a worker does, and ring. */
static void sit_down(struct fixture *fixture, uint32_t worker) {
  fixture->desks[worker].view.pid = 100 + worker;
  desk_show(&fixture->desks[worker], WORKER_IDLE, 1);
  doorbell_ring(&segment_control(fixture->base)->doorbell);
}

TEST(nobody_is_found_before_somebody_sits_down) {
  CLOSED struct fixture fixture = fixture_open(3, 4, 4, 100);
  CHECK_EQUAL(-1, seats_freest(fixture.ledger, MANY));
  CHECK(!ledger_has_news(fixture.ledger));
  sit_down(&fixture, 1);
  CHECK(ledger_has_news(fixture.ledger));
  CHECK_EQUAL(1, seats_freest(fixture.ledger, MANY));
  CHECK(!ledger_has_news(fixture.ledger));
}

TEST(the_freest_is_found_up_to_its_share) {
  CLOSED struct fixture fixture = fixture_open(2, 4, 4, 100);
  sit_down(&fixture, 0);
  sit_down(&fixture, 1);
  uint32_t first = place(&fixture, 0, 0);
  CHECK_EQUAL(1, seats_freest(fixture.ledger, 1));
  place(&fixture, 1, 1);
  CHECK_EQUAL(-1, seats_freest(fixture.ledger, 1));
  CHECK_EQUAL(0, seats_freest(fixture.ledger, 2));
  take(&fixture, 0, first);
  write_answer(&fixture, first, ANSWER_BATCH, 1);
  CHECK_EQUAL(1, seats_load(fixture.ledger, 0));
  commit(&fixture, 0, first);
  CHECK_EQUAL(0, seats_load(fixture.ledger, 0)); /* before it is received */
  receive(&fixture, 0, VERB_READY, first);
  CHECK_EQUAL(0, seats_load(fixture.ledger, 0));
}

TEST(a_closed_seat_is_not_found) {
  CLOSED struct fixture fixture = fixture_open(2, 4, 4, 100);
  sit_down(&fixture, 0);
  sit_down(&fixture, 1);
  seats_open(fixture.ledger, 0, false);
  CHECK_EQUAL(1, seats_freest(fixture.ledger, MANY));
  seats_open(fixture.ledger, 1, false);
  CHECK_EQUAL(-1, seats_freest(fixture.ledger, MANY));
  CHECK(!ledger_has_news(fixture.ledger)); /* nobody is missed in a closed seat */
}

TEST(a_reaped_workers_seat_is_empty) {
  CLOSED struct fixture fixture = fixture_open(1, 4, 4, 100);
  sit_down(&fixture, 0);
  place(&fixture, 0, 0);
  CHECK(seats_is_taken(fixture.ledger, 0));
  ledger_reclaim(fixture.ledger, 0);
  CHECK(!seats_is_taken(fixture.ledger, 0));
  CHECK_EQUAL(0, seats_load(fixture.ledger, 0));
  CHECK_EQUAL(-1, seats_freest(fixture.ledger, MANY));
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

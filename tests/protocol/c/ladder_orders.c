/* SPDX-License-Identifier: BSD-3-Clause */

/* A worker takes what it was given, once, and refuses all else, whatever stands in shared memory. */

#include "check.h"
#include "fixture.h"

static const char *accept(struct fixture *fixture, uint32_t worker, uint32_t slot) {
  struct slot_order order;
  return desk_accept(&fixture->desks[worker], slot, &order);
}

static void check_refused(struct fixture *fixture, uint32_t worker, uint32_t slot,
                          const char *reason) {
  const char *fault = accept(fixture, worker, slot);
  CHECK(fault != NULL && strcmp(fault, reason) == 0, "expected \"%s\", is \"%s\"", reason,
        fault != NULL ? fault : "none");
}

#define NOT_MINE "the slot is not this worker's"
#define TAKEN "its order was taken before"

TEST(slot_that_does_not_exist_is_refused) {
  static const uint32_t missing[] = {2, 3, 5000000, SLOT_MASK};
  CLOSED struct fixture fixture = fixture_open(1, 2, 2, 20);
  for (size_t i = 0; i < LENGTH(missing); i++) {
    check_refused(&fixture, 0, missing[i], "there is no such slot");
  }
}

/* In every state but one, and in that one for every other worker. */
TEST(only_a_placed_slot_is_accepted) {
  CLOSED struct fixture fixture = fixture_open(2, 2, 3, 20);
  check_refused(&fixture, 0, 0, NOT_MINE); /* FREE, never used */
  check_refused(&fixture, 0, 2, NOT_MINE); /* SPARE */
  uint32_t slot = place(&fixture, 0, 5);
  check_refused(&fixture, 1, slot, NOT_MINE);
  CHECK(accept(&fixture, 0, slot) == NULL);
  write_answer(&fixture, slot, ANSWER_BATCH, 1);
  commit(&fixture, 0, slot);
  fixture.desks[0].next_ticket = 0; /* as a replacement that knows of no ticket */
  receive(&fixture, 0, VERB_READY, slot);
  check_refused(&fixture, 0, slot, NOT_MINE); /* READY */
  struct lease *lease = ledger_lease(fixture.ledger, slot, 1);
  check_refused(&fixture, 0, slot, NOT_MINE); /* LEASED: in the hands of the user */
  lease_drop(lease);
  check_refused(&fixture, 0, slot, NOT_MINE);
  ledger_collect(fixture.ledger);
  check_refused(&fixture, 0, slot, NOT_MINE); /* FREE again */
}

/* What its dead predecessor had answered or not: a replacement takes only what is placed again. */
TEST(replacement_takes_no_old_order) {
  CLOSED struct fixture fixture = fixture_open(1, 4, 4, 40);
  uint32_t leased = ready_slot(&fixture, 0, 1), ready = ready_slot(&fixture, 1, 1);
  struct lease *lease = ledger_lease(fixture.ledger, leased, 1);
  uint32_t lost = place(&fixture, 0, 2);
  ledger_reclaim(fixture.ledger, 0);
  fixture_seat(&fixture);
  check_refused(&fixture, 0, leased, NOT_MINE);
  check_refused(&fixture, 0, ready, NOT_MINE);
  check_refused(&fixture, 0, lost, NOT_MINE);
  CHECK_EQUAL(lost, place(&fixture, 0, 2));
  take(&fixture, 0, lost);
  lease_drop(lease);
}

/* Tickets start again from 0 when the segment is used again. */
TEST(next_iterator_takes_no_old_order) {
  CLOSED struct fixture fixture = fixture_open(1, 2, 2, 40);
  uint32_t held = ready_slot(&fixture, 9, 1);
  struct lease *lease = ledger_lease(fixture.ledger, held, 1);
  uint32_t unanswered = place(&fixture, 0, 10);
  ledger_restart(fixture.ledger);
  fixture_seat(&fixture);
  check_refused(&fixture, 0, held, NOT_MINE);
  check_refused(&fixture, 0, unanswered, NOT_MINE);
  uint32_t slot = place(&fixture, 0, 0);
  take(&fixture, 0, slot);
  lease_drop(lease);
}

TEST(marks_tell_workers_and_tickets_apart) {
  static const uint32_t workers[] = {0, 1, 255, SEGMENT_WORKERS_MAX - 1};
  static const uint64_t tickets[] = {0, 1, 1u << 20, (UINT64_C(1) << 47) - 1};
  enum { MARKS = LENGTH(workers) * LENGTH(tickets) };
  uint64_t marks[MARKS];
  for (size_t i = 0; i < MARKS; i++) {
    marks[i] = order_mark(workers[i / LENGTH(tickets)], tickets[i % LENGTH(tickets)]);
    CHECK(marks[i] != 0);
    for (size_t j = 0; j < i; j++) CHECK(marks[i] != marks[j]);
  }
}

/* Every word of an order, overwritten: refused, or harmless because it is within its bounds. */
TEST(forged_words_are_refused) {
  static const uint64_t values[] = {0, 1, 7, 8, 4096, UINT32_MAX, UINT64_C(1) << 47, INT64_MAX,
                                    UINT64_MAX};
  CLOSED struct fixture fixture = fixture_open(2, 2, 2, 40);
  const struct geometry *geometry = &fixture.geometry;
  for (size_t word = 0; word < sizeof(struct slot_order) / 8; word++) {
    for (size_t i = 0; i < LENGTH(values); i++) {
      struct slot_order copy;
      uint32_t cell, slot = place(&fixture, 0, i + 100);
      uint64_t true_word = words_load((uint8_t *)order_of(&fixture, slot) + 8 * word);
      fixture.desks[0].next_ticket = 0;
      CHECK(desk_take(&fixture.desks[0], &cell));
      words_write((uint8_t *)order_of(&fixture, slot) + 8 * word, &values[i], 8);
      if (desk_accept(&fixture.desks[0], slot, &copy) == NULL) {
        CHECK(word != offsetof(struct slot_order, ticket) / 8 || values[i] == true_word);
        CHECK(word != offsetof(struct slot_order, in_force) / 8 || values[i] == true_word);
        CHECK(copy.request_bytes <= copy.pages_bytes);
        CHECK(copy.pages_bytes <= atomic_load(&copy.grant_bytes));
        CHECK(atomic_load(&copy.grant_bytes) <= geometry->range_bytes);
        CHECK(copy.request_kind >= REQUEST_INDICES && copy.request_kind <= REQUEST_PICKLED);
        CHECK((copy.mode & ~ORDER_MODES) == 0);
      }
      CHECK(ledger_free(fixture.ledger, slot));
    }
  }
}

/*
 * Requests of one number are one number long, lists are made of whole ones. Two numbers stand before
 * a numbered request, and are no part of it.
 */
TEST(request_of_another_length_is_refused) {
  static const struct {
    uint32_t mode, kind;
    uint64_t bytes;
    const char *reason; /* NULL: it is accepted */
  } requests[] = {
      {0, REQUEST_INDICES, 12, "a part of an index"},
      {0, REQUEST_INDEX, 0, "not one number"},
      {0, REQUEST_INDEX, 16, "not one number"},
      {0, REQUEST_NONES, 0, "not one number"},
      {0, 0, 8, "unknown kind of request"},
      {0, 6, 8, "unknown kind of request"},
      {0, REQUEST_PICKLED, 1 << 20, "a request beyond the slot's pages"},
      {ORDER_NUMBERED, REQUEST_INDICES, 0, "a part of its numbers"},
      {ORDER_NUMBERED, REQUEST_INDICES, 15, "a part of its numbers"},
      {ORDER_NUMBERED, REQUEST_PICKLED, 8, "a part of its numbers"},
      {ORDER_NUMBERED, REQUEST_INDICES, 20, "a part of an index"},
      {ORDER_NUMBERED, REQUEST_INDEX, 16, "not one number"},
      {ORDER_NUMBERED, REQUEST_NONES, 32, "not one number"},
      {ORDER_NUMBERED, REQUEST_INDICES, 40, NULL},
      {ORDER_NUMBERED, REQUEST_INDEX, 24, NULL},
      {ORDER_NUMBERED, REQUEST_NONES, 24, NULL},
      {ORDER_NUMBERED, REQUEST_PICKLED, 17, NULL},
  };
  CLOSED struct fixture fixture = fixture_open(1, 1, 1, 40);
  uint32_t slot = place(&fixture, 0, 0);
  struct slot_order *order = order_of(&fixture, slot);
  for (size_t i = 0; i < LENGTH(requests); i++) {
    order->mode = requests[i].mode;
    order->request_kind = requests[i].kind;
    order->request_bytes = requests[i].bytes;
    fixture.desks[0].next_ticket = 0;
    if (requests[i].reason != NULL) check_refused(&fixture, 0, slot, requests[i].reason);
    if (requests[i].reason == NULL) CHECK(accept(&fixture, 0, slot) == NULL);
  }
}

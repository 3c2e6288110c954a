/* SPDX-License-Identifier: BSD-3-Clause */

/* The trainer's checks of a worker, each alone; ladder_plays has random answers and cells. */

#include "check.h"
#include "fixture.h"

enum { GRANT_PAGES = 10 };

/* One worker, one slot, one order taken: what most tests here start from. */
static struct fixture fixture_with_order(void) {
  struct fixture fixture = fixture_open(1, 1, 1, GRANT_PAGES);
  take(&fixture, 0, place(&fixture, 0, 7));
  return fixture;
}

TEST(right_answer_is_copied_out) {
  CLOSED struct fixture fixture = fixture_with_order();
  write_answer(&fixture, 0, ANSWER_BATCH, GRANT_PAGES);
  struct slot_answer expected = *answer_of(&fixture, 0);
  arrive(&fixture, 0);
  memset(answer_of(&fixture, 0), 0xff, sizeof expected);
  CHECK(memcmp(&expected, &fixture.ledger->entries[0].answer, sizeof expected) == 0);
  CHECK_EQUAL(pages(GRANT_PAGES), fixture.ledger->entries[0].pages_bytes);
}

/* The largest answer that is right: everything reaches to the last byte, or starts there. */
TEST(bounds_themselves_pass) {
  static const struct slot_answer answers[] = {
      {.payload_bytes = 1, .layout_offset = 0, .layout_bytes = 1},
      {.payload_bytes = 0, .layout_offset = 1, .layout_bytes = 0},
      {.payload_bytes = 0, .layout_offset = 0, .layout_bytes = 0},
  };
  for (size_t i = 0; i < LENGTH(answers); i++) {
    CLOSED struct fixture fixture = fixture_with_order();
    write_answer(&fixture, 0, ANSWER_BATCH, GRANT_PAGES);
    struct slot_answer *answer = answer_of(&fixture, 0);
    answer->payload_bytes = answers[i].payload_bytes * answer->pages_bytes;
    answer->layout_offset = answers[i].layout_offset * answer->pages_bytes;
    answer->layout_bytes = answers[i].layout_bytes * answer->pages_bytes;
    arrive(&fixture, 0);
  }
}

/* A field of an answer, the value that breaks it (pages and bytes), and what the ledger says. */
struct wrong {
  size_t field_offset;
  size_t field_bytes;
  uint64_t pages;
  uint64_t bytes;
  const char *reason;
};

#define WRONG(field, pages, bytes, reason)                                         \
  {offsetof(struct slot_answer, field), sizeof(((struct slot_answer *)0)->field), \
   pages, bytes, reason}

static const struct wrong wrongs[] = {
    WRONG(ticket, 0, 8, "the answer is for another ticket"),
    WRONG(ticket, 0, 6, "the answer is for another ticket"),
    WRONG(ticket, 0, 7 + (UINT64_C(1) << 32), "the answer is for another ticket"),
    WRONG(kind, 0, 0, "unknown answer kind"),
    WRONG(kind, 0, ANSWER_NOTHING + 1, "unknown answer kind"),
    WRONG(kind, 0, UINT32_MAX, "unknown answer kind"),
    WRONG(pages_bytes, 0, HUGE_BYTES + 1, "more pages than the range has"),
    WRONG(pages_bytes, 0, UINT64_MAX, "more pages than the range has"),
    WRONG(pages_bytes, 0, HUGE_BYTES, "more pages than granted"),
    WRONG(pages_bytes, 10, 1, "more pages than granted"),
    WRONG(pages_bytes, 0, 0, "payload beyond the slot's pages"),
    WRONG(payload_bytes, 3, 1, "payload beyond the slot's pages"),
    WRONG(payload_bytes, 0, UINT64_MAX, "payload beyond the slot's pages"),
    WRONG(layout_offset, 3, 1, "layout starts beyond the slot's pages"),
    WRONG(layout_offset, 0, UINT64_MAX, "layout starts beyond the slot's pages"),
    WRONG(layout_offset, 3, 0, "layout ends beyond the slot's pages"),
    WRONG(layout_bytes, 3, 0, "layout ends beyond the slot's pages"),
    WRONG(layout_bytes, 0, UINT64_MAX, "layout ends beyond the slot's pages"),
    WRONG(layout_bytes, 0, UINT64_MAX - 4095, "layout ends beyond the slot's pages"),
};

/* The wrong answer changes nothing, and the right one counts when it comes later. */
static void check_wrong(const struct wrong *wrong) {
  CLOSED struct fixture fixture = fixture_with_order();
  write_answer(&fixture, 0, ANSWER_BATCH, 3);
  struct slot_answer right = *answer_of(&fixture, 0);
  uint64_t value = pages(wrong->pages) + wrong->bytes;
  memcpy((uint8_t *)answer_of(&fixture, 0) + wrong->field_offset, &value, wrong->field_bytes);
  commit(&fixture, 0, 0);
  receive_broken(&fixture, wrong->reason);
  CHECK_EQUAL(SLOT_PLACED, state_of(&fixture, 0));
  CHECK_EQUAL(pages(1), fixture.ledger->entries[0].pages_bytes);
  *answer_of(&fixture, 0) = right;
  arrive(&fixture, 0);
  ledger_free(fixture.ledger, 0);
}

TEST(each_wrong_field_is_found) {
  for (size_t i = 0; i < LENGTH(wrongs); i++) check_wrong(&wrongs[i]);
}

static void tell_cell(struct fixture *fixture, uint32_t worker, uint32_t cell) {
  CHECK(ring_push(&fixture->desks[worker].ready_ring, cell));
}

/* Cells that name a slot which this worker does not hold. */
TEST(cells_for_other_slots_are_broken) {
  CLOSED struct fixture fixture = fixture_open(2, 2, 3, 100);
  uint32_t slot = place(&fixture, 0, 7);
  write_answer(&fixture, slot, ANSWER_BATCH, 1);
  tell_cell(&fixture, 1, cell_make(VERB_READY, slot));
  receive_broken(&fixture, "not this worker's slot");
  tell_cell(&fixture, 1, cell_make(VERB_WANT, slot));
  receive_broken(&fixture, "not this worker's slot");
  tell_cell(&fixture, 0, cell_make(VERB_READY, 1)); /* FREE */
  receive_broken(&fixture, "not this worker's slot");
  tell_cell(&fixture, 0, cell_make(VERB_READY, 2)); /* SPARE */
  receive_broken(&fixture, "not this worker's slot");
  tell_cell(&fixture, 0, cell_make(VERB_READY, 3));
  receive_broken(&fixture, "no such slot");
  tell_cell(&fixture, 0, cell_make(VERB_WANT, SLOT_MASK));
  receive_broken(&fixture, "no such slot");
  CHECK_EQUAL(SLOT_PLACED, state_of(&fixture, slot));
}

TEST(unknown_verbs_are_broken) {
  static const uint32_t verbs[] = {0, VERB_PLACE, VERB_RESUME, VERB_QUIT, 7, 255};
  CLOSED struct fixture fixture = fixture_with_order();
  for (size_t i = 0; i < LENGTH(verbs); i++) {
    tell_cell(&fixture, 0, verbs[i] << SLOT_BITS);
    receive_broken(&fixture, "unknown verb");
  }
}

TEST(answer_counts_once) {
  CLOSED struct fixture fixture = fixture_with_order();
  write_answer(&fixture, 0, ANSWER_BATCH, 1);
  commit(&fixture, 0, 0);
  arrive(&fixture, 0);
  receive_broken(&fixture, "not this worker's slot");
  CHECK_EQUAL(SLOT_READY, state_of(&fixture, 0));
  struct lease *lease = ledger_lease(fixture.ledger, 0, 1);
  commit(&fixture, 0, 0);
  receive_broken(&fixture, "not this worker's slot");
  CHECK_EQUAL(SLOT_LEASED, state_of(&fixture, 0));
  drop_and_collect(&fixture, lease);
}

/* A worker whose user code gave up waiting asks again, when the grant has come in between. */
TEST(want_of_what_is_granted_waits_for_nothing) {
  CLOSED struct fixture fixture = fixture_with_order();
  answer_of(&fixture, 0)->ticket = 7;
  answer_of(&fixture, 0)->want_bytes = pages(GRANT_PAGES);
  tell_cell(&fixture, 0, cell_make(VERB_WANT, 0));
  struct news news;
  CHECK_EQUAL(1, ledger_receive(fixture.ledger, &news));
  CHECK_EQUAL(VERB_WANT, news.verb);
  CHECK_EQUAL(0, fixture.ledger->wanting);
}

TEST(want_for_another_ticket_is_broken) {
  CLOSED struct fixture fixture = fixture_with_order();
  answer_of(&fixture, 0)->ticket = 6;
  tell_cell(&fixture, 0, cell_make(VERB_WANT, 0));
  receive_broken(&fixture, "wants pages for another ticket");
}

/* A ring may be full; one that claims to hold more is not read, since it would not end. */
TEST(more_news_than_cells_is_broken) {
  CLOSED struct fixture fixture = fixture_with_order();
  struct ring *ready = segment_ready_ring(fixture.base, &fixture.geometry, 0);
  uint32_t capacity = fixture.geometry.ring_capacity;
  write_answer(&fixture, 0, ANSWER_BATCH, 1);
  for (uint32_t i = 0; i < capacity; i++) ready->cells[i] = cell_make(VERB_WANT, 0);
  atomic_fetch_add(&ready->write_pos, capacity);
  for (uint32_t i = 0; i < capacity; i++) receive(&fixture, 0, VERB_WANT, 0);
  CHECK(!ledger_has_news(fixture.ledger));
  atomic_fetch_add(&ready->write_pos, capacity + 1);
  for (int look = 0; look < 3; look++) receive_broken(&fixture, "its ring holds more than it can");
  ledger_reclaim(fixture.ledger, 0);
  CHECK(!ledger_has_news(fixture.ledger));
}

/* What another process says of a batch that is copied in: if it is wrong, nothing is filled. */
TEST(answers_of_others_that_contradict_themselves_fill_no_slot) {
  CLOSED struct fixture fixture = fixture_open(1, 1, 1, GRANT_PAGES);
  uint64_t most = fixture.geometry.range_bytes;
  static const uint8_t from[4096];
  const struct slot_answer wrong[] = {
      {.kind = UINT16_MAX, .payload_bytes = 64, .layout_offset = 64, .layout_bytes = 8},
      {.kind = ANSWER_BATCH, .payload_bytes = most + 1, .layout_offset = 64, .layout_bytes = 8},
      {.kind = ANSWER_BATCH, .payload_bytes = 64, .layout_offset = most + 1, .layout_bytes = 8},
      {.kind = ANSWER_BATCH, .payload_bytes = 64, .layout_offset = 64, .layout_bytes = most - 63},
      {.kind = ANSWER_BATCH, .payload_bytes = 64, .layout_offset = 64, .layout_bytes = 0},
  };
  for (size_t i = 0; i < LENGTH(wrong); i++) {
    CHECK_EQUAL(-EBADMSG, ledger_fill(fixture.ledger, 0, &wrong[i], from, -1, 0));
    CHECK_EQUAL(SLOT_FREE, state_of(&fixture, 0));
  }
  struct slot_answer right = wrong[LENGTH(wrong) - 1];
  right.layout_bytes = 8;
  CHECK_EQUAL(0, ledger_fill(fixture.ledger, 0, &right, from, -1, 0));
  CHECK_EQUAL(SLOT_READY, state_of(&fixture, 0));
  check_ledger(fixture.ledger);
}

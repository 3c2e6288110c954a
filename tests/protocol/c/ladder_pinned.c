/* Slots that devices read where they lie: locks and fences, over a driver that is none. */

#include "check.h"
#include "fixture.h"
#include "pinned.h"
#include "standin_driver.h"

enum { LENGTH_PAGES = 8, SLOTS = 4 };

static uint64_t length(void) { return pages(LENGTH_PAGES); }

static struct fixture open_pinned(void) {
  CHECK_EQUAL(0, driver_open(NULL));
  standin_begin();
  return fixture_open(1, SLOTS, SLOTS + 2, SLOTS * 512);
}

static int lock(struct fixture *fixture, uint32_t slot, uint64_t bytes) {
  struct pinned_range range;
  int error = pinned_begin(fixture->ledger, slot, bytes, &range);
  if (error != 0) return error;
  error = pinned_lock(&range);
  pinned_end(fixture->ledger, slot, &range, error);
  return error;
}

static char *start_of(const struct fixture *fixture, uint32_t slot) {
  return (char *)fixture->ledger->base + segment_slot_offset(&fixture->geometry, slot);
}

/* A batch of this value, which is leased for devices. */
static struct lease *lent(struct fixture *fixture, uint64_t ticket, char value) {
  uint32_t slot = ready_slot(fixture, ticket, LENGTH_PAGES);
  memset(start_of(fixture, slot), value, length());
  CHECK_EQUAL(0, lock(fixture, slot, length()));
  struct lease *lease = ledger_lease(fixture->ledger, slot, 1);
  fixture->ledger->entries[slot].is_for_devices = true;
  return lease;
}

/* A slot whose batch was dropped while a copy of it is under way, behind a fence. */
static uint32_t dropped_under_way(struct fixture *fixture) {
  static char there[1 << 20];
  struct lease *lease = lent(fixture, 1, 'a');
  uint32_t slot = lease->slot;
  standin_copy(there, start_of(fixture, slot), length());
  lease_drop(lease);
  CHECK_EQUAL(0, pinned_look(fixture->ledger));
  CHECK_EQUAL(SLOT_FENCED, state_of(fixture, slot));
  return slot;
}

/* Let all copies end, and undo all locks. */
static void end_pinned(struct fixture *fixture) {
  standin_finish(-1);
  CHECK_EQUAL(0, pinned_look(fixture->ledger));
  CHECK_EQUAL(0, pinned_unlock(fixture->ledger, PINNED_FREE));
  CHECK_EQUAL(0, standin_registered);
  CHECK_EQUAL(0, standin_faults);
  CHECK_EQUAL(0, pinned_total_bytes());
}

static void close_pinned(struct fixture *fixture) {
  end_pinned(fixture);
  fixture_close(fixture);
}
#define CLOSED_PINNED __attribute__((cleanup(close_pinned)))

/* One event covers all that was dropped before it, and nothing is asked twice. */
TEST(one_fence_covers_all_that_were_dropped) {
  CLOSED_PINNED struct fixture fixture = open_pinned();
  struct lease *leases[3];
  for (uint64_t i = 0; i < 3; i++) leases[i] = lent(&fixture, i + 1, 'a');
  for (int i = 0; i < 3; i++) lease_drop(leases[i]);
  CHECK_EQUAL(0, pinned_look(fixture.ledger));
  CHECK_EQUAL(1, standin_records);
  CHECK_EQUAL(0, fixture.ledger->counts[SLOT_FENCED]);
  CHECK_EQUAL(0, pinned_look(fixture.ledger));
  CHECK_EQUAL(1, standin_records);
  CHECK_EQUAL(1, standin_events);
}

/* No view of a FENCED slot exists, so a child cannot have one. */
TEST(a_fenced_slot_is_not_marked_for_a_child) {
  CLOSED_PINNED struct fixture fixture = open_pinned();
  uint8_t marks[SLOTS + 2] = {0};
  (void)dropped_under_way(&fixture);
  CHECK_EQUAL(0, ledger_mark_child(fixture.ledger, marks));
}

/* A child that was forked while it was leased reads it longer than the device does. */
TEST(a_fenced_slot_waits_for_a_child_too) {
  CLOSED_PINNED struct fixture fixture = open_pinned();
  uint8_t marks[SLOTS + 2] = {0};
  struct lease *lease = lent(&fixture, 1, 'a');
  uint32_t slot = lease->slot;
  CHECK_EQUAL(1, ledger_mark_child(fixture.ledger, marks));
  lease_drop(lease);
  CHECK_EQUAL(0, pinned_look(fixture.ledger));
  CHECK_EQUAL(SLOT_FORKED, state_of(&fixture, slot));
  CHECK_EQUAL(0, standin_registered); /* unlocked, because no device reads it again soon */
  ledger_unmark_child(fixture.ledger, marks);
  CHECK(state_of(&fixture, slot) != SLOT_FORKED);
}

TEST(a_larger_batch_is_locked_anew) {
  CLOSED_PINNED struct fixture fixture = open_pinned();
  uint32_t slot = ready_slot(&fixture, 1, LENGTH_PAGES);
  CHECK_EQUAL(0, lock(&fixture, slot, pages(2)));
  CHECK_EQUAL(0, lock(&fixture, slot, 1));
  CHECK_EQUAL(1, standin_ever_registered);
  CHECK_EQUAL(0, lock(&fixture, slot, length()));
  CHECK_EQUAL(2, standin_ever_registered);
  CHECK_EQUAL(1, standin_registered);
  CHECK_EQUAL(length(), pinned_bytes(fixture.ledger, slot));
  CHECK_EQUAL(length(), pinned_total_bytes());
  CHECK(ledger_free(fixture.ledger, slot));
}

/* Nothing is noted that did not happen. */
TEST(a_lock_that_is_refused_leaves_none) {
  CLOSED_PINNED struct fixture fixture = open_pinned();
  uint32_t slot = ready_slot(&fixture, 1, LENGTH_PAGES);
  standin_refuses = 712;
  CHECK_EQUAL(712, lock(&fixture, slot, length()));
  CHECK_EQUAL(0, pinned_bytes(fixture.ledger, slot));
  standin_refuses = 0;
  driver_capture_begins();
  CHECK_EQUAL(-EBUSY, lock(&fixture, slot, length()));
  driver_capture_ends();
  CHECK_EQUAL(0, pinned_total_bytes());
  CHECK(ledger_free(fixture.ledger, slot));
}

/* Until it ends, nothing is recorded, and nothing that was dropped is used. */
TEST(a_capture_is_left_alone) {
  CLOSED_PINNED struct fixture fixture = open_pinned();
  struct lease *lease = lent(&fixture, 1, 'a');
  uint32_t slot = lease->slot;
  driver_capture_begins();
  driver_capture_begins();
  standin_capturing = 1;
  lease_drop(lease);
  CHECK_EQUAL(0, pinned_look(fixture.ledger));
  CHECK_EQUAL(1, pinned_unlock(fixture.ledger, PINNED_FREE));
  driver_capture_ends();
  CHECK_EQUAL(0, pinned_look(fixture.ledger));
  CHECK_EQUAL(SLOT_FENCED, state_of(&fixture, slot));
  CHECK_EQUAL(0, standin_spoilt);
  standin_capturing = 0;
  driver_capture_ends();
  CHECK_EQUAL(0, pinned_look(fixture.ledger));
  CHECK_EQUAL(SLOT_FREE, state_of(&fixture, slot));
}

/* An event of before is asked in a capture, in a mode in which that does not mind. */
TEST(a_fence_may_end_in_a_capture) {
  CLOSED_PINNED struct fixture fixture = open_pinned();
  (void)dropped_under_way(&fixture);
  driver_capture_begins();
  standin_capturing = 1;
  standin_finish(-1);
  CHECK_EQUAL(0, pinned_look(fixture.ledger));
  CHECK_EQUAL(0, fixture.ledger->counts[SLOT_FENCED]);
  CHECK_EQUAL(0, standin_spoilt);
  standin_capturing = 0;
  driver_capture_ends();
}

/* Its slots stay out of use; those of other fences do not. */
TEST(a_fence_that_fails_keeps_its_slots) {
  CLOSED_PINNED struct fixture fixture = open_pinned();
  uint32_t slot = dropped_under_way(&fixture);
  standin_query_fails = 700;
  CHECK_EQUAL(700, pinned_look(fixture.ledger));
  standin_query_fails = 0;
  lease_drop(lent(&fixture, 2, 'b'));
  standin_finish(-1);
  CHECK_EQUAL(0, pinned_look(fixture.ledger));
  CHECK_EQUAL(SLOT_FENCED, state_of(&fixture, slot));
  CHECK_EQUAL(1, fixture.ledger->counts[SLOT_FENCED]);
  CHECK_EQUAL(1, pinned_unlock(fixture.ledger, PINNED_FREE));
  ledger_end_fence(fixture.ledger, fixture.ledger->entries[slot].fence);
}

TEST(a_record_that_fails_is_tried_again) {
  CLOSED_PINNED struct fixture fixture = open_pinned();
  struct lease *lease = lent(&fixture, 1, 'a');
  standin_record_fails = 700;
  lease_drop(lease);
  CHECK_EQUAL(700, pinned_look(fixture.ledger));
  CHECK_EQUAL(1, fixture.ledger->counts[SLOT_FENCED]);
  standin_record_fails = 0;
}

/* All that it did has ended, and its locks are void. */
TEST(a_context_that_is_gone_has_ended_its_copies) {
  CLOSED_PINNED struct fixture fixture = open_pinned();
  (void)dropped_under_way(&fixture);
  standin_reset();
  CHECK_EQUAL(0, pinned_look(fixture.ledger));
  CHECK_EQUAL(0, fixture.ledger->counts[SLOT_FENCED]);
  (void)pinned_unlock(fixture.ledger, PINNED_FREE);
  standin_query_fails = 0;
  lease_drop(lent(&fixture, 2, 'b'));
  CHECK_EQUAL(0, pinned_look(fixture.ledger));
  CHECK_EQUAL(0, fixture.ledger->counts[SLOT_FENCED]);
}

/* What a device may read stays, whoever looks for pages, until it is unlocked. */
TEST(locked_pages_stay) {
  CLOSED_PINNED struct fixture fixture = open_pinned();
  struct lease *lease = lent(&fixture, 1, 'a');
  ledger_rest_leased(fixture.ledger, true);
  lease_drop(lease);
  CHECK_EQUAL(0, pinned_look(fixture.ledger));
  CHECK_EQUAL(0, pinned_look(fixture.ledger));
  ledger_rest(fixture.ledger, true);
  budget_trim(fixture.ledger, UINT64_MAX);
  CHECK_EQUAL(length(), resident(&fixture));
  end_pinned(&fixture);
  budget_trim(fixture.ledger, UINT64_MAX);
  CHECK_EQUAL(0, resident(&fixture));
}

/* A child calls nothing of the driver, even if no hook has told it that the locks are not its own. */
TEST(copy_unlocks_nothing) {
  CLOSED_PINNED struct fixture fixture = open_pinned();
  lease_drop(lent(&fixture, 1, 'a'));
  pid_t pid = fork();
  if (pid == 0) _exit(pinned_unlock(fixture.ledger, PINNED_LEFT) != 0 || standin_registered != 1);
  check_ends_well(pid);
}

/* Memory stays mapped as long as any of it is locked. */
TEST(locks_hold_the_segment) {
  struct fixture fixture = open_pinned();
  struct lease *lease = lent(&fixture, 1, 'a');
  lease_drop(lease);
  fixture_close_desks(&fixture);
  CHECK_EQUAL(2, fixture.ledger->references);
  CHECK_EQUAL(0, pinned_look(fixture.ledger));
  CHECK_EQUAL(0, pinned_unlock(fixture.ledger, PINNED_FREE));
  CHECK_EQUAL(0, standin_registered);
  CHECK_EQUAL(1, fixture.ledger->references);
  ledger_unref(fixture.ledger);
}

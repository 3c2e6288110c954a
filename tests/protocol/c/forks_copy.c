/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A process that is copied. A child of the trainer calls every function of the trainer, with slots
 * in every state: no byte of the segment changes, no page comes or goes, and the trainer goes on as
 * if there were no child.
 */

#include "check.h"
#include "children.h"
#include "fixture.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>

/* Everything but the ranges, and the pages of these. */
static void photograph(const struct fixture *fixture, uint8_t *table, uint64_t *blocks) {
  struct stat found;
  CHECK_EQUAL(0, fstat(fixture->fd, &found));
  *blocks = (uint64_t)found.st_blocks;
  memcpy(table, fixture->base, fixture->geometry.table_end);
}

static void call_everything(struct fixture *fixture, struct lease *lease, uint32_t placed,
                            uint32_t ready) {
  struct ledger *ledger = fixture->ledger;
  struct news news;
  uint8_t marks[16] = {0};
  uint64_t index = 7;
  CHECK(ledger_is_copy(ledger));
  CHECK_EQUAL(-EPERM, ledger_place(ledger, 0, 99, REQUEST_INDEX, &index, sizeof index, 0));
  CHECK(!ledger_tell(ledger, 0, VERB_RESUME));
  CHECK(!ledger_receive(ledger, &news));
  CHECK_EQUAL(0, ledger_mark_child(ledger, marks));
  ledger_unmark_child(ledger, marks);
  ledger_retire_leased(ledger);
  ledger_grant(ledger, placed, pages(3));
  ledger_refuse(ledger, placed);
  ledger_free(ledger, ready);
  CHECK_EQUAL(-EPERM, budget_need(ledger, placed, pages(9)));
  budget_room(ledger, placed, pages(1000));
  budget_retake(ledger, ready, 0);
  lease_drop(lease);
  ledger_collect(ledger);
  ledger_reclaim(ledger, 0);
  const struct nameplate known = {.loader = 1};
  log_name(ledger, &known);
  log_segment(ledger, SEGMENT_CLOSED);
  log_begin(ledger, 2, 3, 0, 7);
  log_ask(ledger);
  log_return(ledger);
  log_end(ledger);
  ledger_stop(ledger, true);
  ledger_rest(ledger, true);
  ledger_restart(ledger);
  ledger_unref(ledger);
}

TEST(copy_changes_nothing) {
  struct fixture fixture = fixture_open(2, 4, 6, 100);
  struct lease *lease = ledger_lease(fixture.ledger, ready_slot(&fixture, 0, 2), 1);
  uint32_t ready = ready_slot(&fixture, 1, 2);
  uint32_t other = ready_slot(&fixture, 2, 2);
  ledger_free(fixture.ledger, other); /* FREE, with pages */
  uint32_t placed = place(&fixture, 0, 3);
  uint32_t unread = place(&fixture, 1, 4);
  take(&fixture, 1, unread);
  write_answer(&fixture, unread, ANSWER_BATCH, 2);
  commit(&fixture, 1, unread);
  uint8_t *before = malloc(fixture.geometry.table_end);
  uint8_t *after = malloc(fixture.geometry.table_end);
  CHECK(before != NULL && after != NULL);
  uint64_t blocks_before, blocks_after;
  photograph(&fixture, before, &blocks_before);
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    call_everything(&fixture, lease, placed, ready);
    _exit(0);
  }
  check_ends_well(pid);
  photograph(&fixture, after, &blocks_after);
  CHECK_EQUAL(0, memcmp(before, after, fixture.geometry.table_end));
  CHECK_EQUAL(blocks_before, blocks_after);
  free(before);
  free(after);
  check_ledger(fixture.ledger);
  CHECK_EQUAL(0, trainer_slot(&fixture, lease->slot)[0]);
  CHECK_EQUAL(1, trainer_slot(&fixture, ready)[0]);
  receive(&fixture, 1, VERB_READY, unread);
  CHECK_EQUAL(4, trainer_slot(&fixture, unread)[0]);
  drop_and_collect(&fixture, lease);
  CHECK_EQUAL(SLOT_FREE, state_of(&fixture, 0));
  fixture_close(&fixture);
}

/* What is leased between the two hooks of a fork is the child's too. */
TEST(lease_inside_a_fork_is_marked) {
  CLOSED struct fixture fixture = fixture_open(1, 3, 3, 100);
  children_watch(fixture.ledger);
  uint32_t slot = ready_slot(&fixture, 0, 1);
  children_before_fork();
  struct lease *lease = ledger_lease(fixture.ledger, slot, 1);
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) pause();
  }
  drop_and_collect(&fixture, lease);
  children_look(); /* too early: the fork is not over here */
  children_after_fork();
  children_look();
  CHECK_EQUAL(SLOT_FORKED, state_of(&fixture, slot));
  CHECK_EQUAL(0, kill(pid, SIGKILL));
  check_ends_killed(pid, SIGKILL);
  children_look();
  CHECK_EQUAL(SLOT_FREE, state_of(&fixture, slot));
  children_forget(fixture.ledger);
}

/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Aliases of one lease dropped by several threads at once: the end runs once, after every other
 * thread's last use, even when the ledger's owner gives up at the same moment.
 */

#include "check.h"
#include "fixture.h"

#include <pthread.h>
#include <sched.h>
#include <sys/stat.h>

enum { THREADS = 3, ALIASES = 4 };

/* One round: all threads start together, read the memory, and drop their aliases. */
struct round {
  struct lease *lease;
  const uint8_t *memory;
  uint8_t expected;
  _Atomic uint32_t waiting;
};

static void *read_and_drop(void *argument) {
  struct round *round = argument;
  atomic_fetch_sub(&round->waiting, 1);
  while (atomic_load(&round->waiting) > 0) sched_yield();
  for (int alias = 0; alias < ALIASES; alias++) {
    CHECK_EQUAL(round->expected, round->memory[alias]);
    lease_take(round->lease);
    lease_drop(round->lease);
    CHECK_EQUAL(round->expected, round->memory[1000 + alias]);
    lease_drop(round->lease);
  }
  return NULL;
}

/* The threads hold all aliases; meanwhile the caller does something else. */
static void drop_all(struct round *round, void (*meanwhile)(void *), void *argument) {
  pthread_t threads[THREADS];
  atomic_store(&round->waiting, THREADS + 1);
  for (int i = 0; i < THREADS; i++) {
    CHECK_EQUAL(0, pthread_create(&threads[i], NULL, read_and_drop, round));
  }
  atomic_fetch_sub(&round->waiting, 1);
  meanwhile(argument);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}

static _Atomic uint32_t ends;
static uint8_t memory[1000 + ALIASES];

/* The end makes a plain write: a race with any reader's last use would show. */
static void spoil(struct lease *lease) {
  (void)lease;
  memset(memory, 0xff, sizeof memory);
  atomic_fetch_add(&ends, 1);
}

static void nothing(void *argument) { (void)argument; }

TEST(end_runs_once_after_the_last_use) {
  uint32_t rounds = 0;
  for (struct limit limit = limit_of(0.2, 1000000); limit_allows(&limit);) {
    struct lease lease = {.end = spoil};
    struct round round = {.lease = &lease, .memory = memory, .expected = (uint8_t)rounds};
    memset(memory, (int)round.expected, sizeof memory);
    lease_begin(&lease, THREADS * ALIASES);
    drop_all(&round, nothing, NULL);
    CHECK_EQUAL(++rounds, atomic_load(&ends));
  }
}

static void collect(void *argument) {
  struct fixture *fixture = argument;
  int64_t deadline_ns = platform_now_ns() + INT64_C(20000000000);
  while (state_of(fixture, 0) != SLOT_FREE) {
    ledger_collect(fixture->ledger);
    CHECK(platform_now_ns() < deadline_ns, "the slot was never released");
  }
}

/* Collect until the slot is FREE, and write over it at once, before anything else can order it. */
static void collect_and_write(void *argument) {
  struct fixture *fixture = argument;
  collect(fixture);
  memset(fixture->ledger->base + segment_slot_offset(&fixture->geometry, 0), 0xff, 2000);
}

/* The trainer collects while the slot is being released. */
TEST(released_slot_is_written_again) {
  CLOSED struct fixture fixture = fixture_open(1, 1, 1, 10);
  uint64_t ticket = 0;
  for (struct limit limit = limit_of(0.2, 1000000); limit_allows(&limit); ticket++) {
    uint32_t slot = place(&fixture, 0, ticket);
    uint8_t *start = fixture.ledger->base + segment_slot_offset(&fixture.geometry, slot);
    take(&fixture, 0, slot);
    deliver(&fixture, slot, ANSWER_BATCH, 1);
    /* On the trainer's own mapping, where the sanitizer sees it. */
    memset(start, (int)(ticket & 0xff), 2000);
    struct round round = {.memory = start, .expected = (uint8_t)ticket};
    round.lease = ledger_lease(fixture.ledger, slot, THREADS * ALIASES);
    drop_all(&round, collect_and_write, &fixture);
    CHECK_EQUAL(SLOT_FREE, state_of(&fixture, slot));
    CHECK_EQUAL(1, atomic_load(&fixture.ledger->references));
  }
}

/* Under a guard the last user closes the slot, and the trainer opens it for the next batch. */
TEST(guarded_slot_is_opened_again) {
  CLOSED struct fixture fixture = fixture_open(1, 1, 1, 10);
  fixture_guard(&fixture);
  uint64_t ticket = 0;
  for (struct limit limit = limit_of(0.2, 1000000); limit_allows(&limit); ticket++) {
    uint32_t slot = come_slot(&fixture, ticket);
    struct round round = {.expected = (uint8_t)ticket};
    round.lease = ledger_lease(fixture.ledger, slot, THREADS * ALIASES);
    round.memory = trainer_slot(&fixture, slot);
    drop_all(&round, collect, &fixture);
    CHECK_EQUAL(SLOT_FREE, state_of(&fixture, slot));
  }
}

static void give_up(void *argument) { ledger_unref(argument); }

/* Owner and leases end in any order: the last one unmaps, and no thread uses it afterwards. */
static void end_in_any_order(bool guarded) {
  for (struct limit limit = limit_of(0.2, 100000); limit_allows(&limit);) {
    struct fixture fixture = fixture_open(1, 1, 1, 10);
    if (guarded) fixture_guard(&fixture);
    uint32_t slot = come_slot(&fixture, 7);
    const uint8_t *start = fixture.ledger->base + segment_slot_offset(&fixture.geometry, slot);
    int fd = fixture.ledger->fd;
    struct round round = {.memory = start, .expected = 7};
    round.lease = ledger_lease(fixture.ledger, slot, THREADS * ALIASES);
    drop_all(&round, give_up, fixture.ledger);
    CHECK_EQUAL(-1, fcntl(fd, F_GETFD));
    fixture_close_desks(&fixture);
  }
}

TEST(whoever_is_last_unmaps) { end_in_any_order(false); }
TEST(whoever_is_last_ends_the_guard) { end_in_any_order(true); }

/* Many slots, a thread for each half: which of them drop before the close differs every time. */
struct dropper {
  struct lease **leases;
  uint32_t count;
  _Atomic uint32_t *waiting;
};

static void *drop_leases(void *argument) {
  struct dropper *dropper = argument;
  atomic_fetch_sub(dropper->waiting, 1);
  while (atomic_load(dropper->waiting) > 0) sched_yield();
  for (uint32_t i = 0; i < dropper->count; i++) lease_drop(dropper->leases[i]);
  return NULL;
}

/* The close in the middle of drops on other threads: every page is given back, none twice. */
TEST(each_slot_is_given_back_once) {
  enum { SLOTS = 16, HALF = SLOTS / 2 };
  for (struct limit limit = limit_of(0.2, 20000); limit_allows(&limit);) {
    CLOSED struct fixture fixture = fixture_open(1, SLOTS, SLOTS, 1000);
    struct lease *leases[SLOTS];
    for (uint64_t i = 0; i < SLOTS; i++) {
      leases[i] = ledger_lease(fixture.ledger, ready_slot(&fixture, i, 1 + i % 3), 1);
    }
    _Atomic uint32_t waiting = 3;
    struct dropper droppers[] = {{leases, HALF, &waiting}, {leases + HALF, HALF, &waiting}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
      CHECK_EQUAL(0, pthread_create(&threads[i], NULL, drop_leases, &droppers[i]));
    }
    atomic_fetch_sub(&waiting, 1);
    while (atomic_load(&waiting) > 0) sched_yield();
    ledger_close(fixture.ledger);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    CHECK_EQUAL(0, resident(&fixture));
    CHECK_EQUAL(SLOTS,
                fixture.ledger->counts[SLOT_FREE] + fixture.ledger->counts[SLOT_LEASED]);
    CHECK_EQUAL(1, atomic_load(&fixture.ledger->references));
  }
}

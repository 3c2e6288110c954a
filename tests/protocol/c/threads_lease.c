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

static _Atomic uint32_t awaited;

/* The threads and the caller start together. */
static void meet(void) {
  atomic_fetch_sub(&awaited, 1);
  while (atomic_load(&awaited) > 0) sched_yield();
}

/* The threads drop what the argument names; meanwhile the caller does something else. */
static void drop_all(void *(*drop)(void *), void *argument, void (*meanwhile)(void *), void *its) {
  pthread_t threads[THREADS];
  atomic_store(&awaited, THREADS + 1);
  for (int i = 0; i < THREADS; i++) {
    CHECK_EQUAL(0, pthread_create(&threads[i], NULL, drop, argument));
  }
  meet();
  meanwhile(its);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}

/* A lease of which the threads hold all aliases. */
struct shared {
  struct lease *lease;
  const uint8_t *memory;
  uint8_t expected;
};

static void *read_and_drop(void *argument) {
  struct shared *shared = argument;
  meet();
  for (int alias = 0; alias < ALIASES; alias++) {
    CHECK_EQUAL(shared->expected, shared->memory[alias]);
    lease_take(shared->lease);
    lease_drop(shared->lease);
    CHECK_EQUAL(shared->expected, shared->memory[1000 + alias]);
    lease_drop(shared->lease);
  }
  return NULL;
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
    struct shared shared = {&lease, memory, (uint8_t)rounds};
    memset(memory, (int)shared.expected, sizeof memory);
    lease_begin(&lease, THREADS * ALIASES);
    drop_all(read_and_drop, &shared, nothing, NULL);
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

/*
 * The trainer collects while the slot is being released. Under a guard the last user closes the
 * slot, and the trainer opens it for the next batch.
 */
static void use_again(bool guarded) {
  CLOSED struct fixture fixture = fixture_open(1, 1, 1, 10);
  if (guarded) fixture_guard(&fixture);
  uint64_t ticket = 0;
  for (struct limit limit = limit_of(0.2, 1000000); limit_allows(&limit); ticket++) {
    uint32_t slot = come_slot(&fixture, ticket);
    uint8_t *start = trainer_slot(&fixture, slot);
    /* On the trainer's own mapping, where the sanitizer sees it. */
    if (!guarded) memset(start, (int)(ticket & 0xff), 2000);
    struct lease *lease = ledger_lease(fixture.ledger, slot, THREADS * ALIASES);
    struct shared shared = {lease, start, (uint8_t)ticket};
    drop_all(read_and_drop, &shared, guarded ? collect : collect_and_write, &fixture);
    CHECK_EQUAL(SLOT_FREE, state_of(&fixture, slot));
    CHECK_EQUAL(1, atomic_load(&fixture.ledger->references));
  }
}

TEST(released_slot_is_written_again) { use_again(false); }
TEST(guarded_slot_is_opened_again) { use_again(true); }

static void give_up(void *argument) { ledger_unref(argument); }

/* Owner and leases end in any order: the last one unmaps, and no thread uses it afterwards. */
static void end_in_any_order(bool guarded) {
  for (struct limit limit = limit_of(0.2, 100000); limit_allows(&limit);) {
    struct fixture fixture = fixture_open(1, 1, 1, 10);
    if (guarded) fixture_guard(&fixture);
    uint32_t slot = come_slot(&fixture, 7);
    int fd = fixture.ledger->fd;
    struct lease *lease = ledger_lease(fixture.ledger, slot, THREADS * ALIASES);
    struct shared shared = {lease, trainer_slot(&fixture, slot), 7};
    drop_all(read_and_drop, &shared, give_up, fixture.ledger);
    CHECK_EQUAL(-1, fcntl(fd, F_GETFD));
    fixture_close_desks(&fixture);
  }
}

TEST(whoever_is_last_unmaps) { end_in_any_order(false); }
TEST(whoever_is_last_ends_the_guard) { end_in_any_order(true); }

/* Many slots, a share for each thread: which of them drop before the close differs every time. */
enum { SHARE = 5, SLOTS = THREADS * SHARE };

struct shares {
  struct lease *leases[SLOTS];
  _Atomic uint32_t taken;
};

static void *drop_share(void *argument) {
  struct shares *shares = argument;
  struct lease **share = shares->leases + SHARE * atomic_fetch_add(&shares->taken, 1);
  meet();
  for (int i = 0; i < SHARE; i++) lease_drop(share[i]);
  return NULL;
}

static void close_ledger(void *argument) { ledger_close(argument); }

/* The close in the middle of drops on other threads: every page is given back, none twice. */
TEST(each_slot_is_given_back_once) {
  for (struct limit limit = limit_of(0.2, 20000); limit_allows(&limit);) {
    CLOSED struct fixture fixture = fixture_open(1, SLOTS, SLOTS, 1000);
    struct shares shares = {0};
    for (uint64_t i = 0; i < SLOTS; i++) {
      shares.leases[i] = ledger_lease(fixture.ledger, ready_slot(&fixture, i, 1 + i % 3), 1);
    }
    drop_all(drop_share, &shares, close_ledger, fixture.ledger);
    CHECK_EQUAL(0, resident(&fixture));
    CHECK_EQUAL(SLOTS,
                fixture.ledger->counts[SLOT_FREE] + fixture.ledger->counts[SLOT_LEASED]);
    CHECK_EQUAL(1, atomic_load(&fixture.ledger->references));
  }
}

/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Workers as processes, killed with SIGKILL at any instruction, reaped, reclaimed, and replaced.
 * Every ticket is delivered exactly once with the right bytes, no slot is lost, and the pages that
 * exist are those that the ledger counts.
 */

#include "check.h"
#include "fixture.h"
#include "traffic.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>

enum { WORKERS = 3, SLOTS = 7, RANGES = 6 * SLOTS, RING_PAGES = 40, HELD_MOST = 3 };

/* The trainer, its workers, and the batches that it holds. */
struct house {
  struct fixture fixture;
  struct trainer trainer;
  pid_t pids[WORKERS];
  struct lease *held[HELD_MOST];
  uint64_t kills, stops, started;
};

/* Hold a batch for a while: it takes the place of another, which must have stayed as it was. */
static void hold(struct trainer *trainer, struct lease *lease) {
  struct house *house = trainer->keeper;
  struct lease **place = &house->held[random_below(&trainer->random, HELD_MOST)];
  if (*place != NULL) {
    check_batch(trainer->ledger, *place);
    lease_drop(*place);
  }
  *place = lease;
}

static void drop_held(struct house *house) {
  for (int i = 0; i < HELD_MOST; i++) {
    if (house->held[i] == NULL) continue;
    check_batch(house->fixture.ledger, house->held[i]);
    lease_drop(house->held[i]);
    house->held[i] = NULL;
  }
  ledger_collect(house->fixture.ledger);
}

/* A worker maps the segment for itself, at any address. */
static _Noreturn void be_worker(struct house *house, uint32_t worker) {
  struct fixture *fixture = &house->fixture;
  struct desk desk;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  void *base = mmap(NULL, fixture->geometry.total_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                    fixture->fd, 0);
  CHECK(base != MAP_FAILED);
  desk_init(&desk, base, fixture->fd, &fixture->geometry, worker);
  traffic_work(&desk, 100 + house->started, (struct habits){.error_in = 50, .kept_in = 200});
  _exit(0);
}

static void start_worker(struct house *house, uint32_t worker) {
  house->started++;
  house->pids[worker] = fork();
  CHECK(house->pids[worker] >= 0);
  if (house->pids[worker] == 0) be_worker(house, worker);
  house->trainer.absent[worker] = false;
}

static void reap(struct house *house, uint32_t worker, bool killed) {
  if (killed) check_ends_killed(house->pids[worker], SIGKILL);
  else check_ends_well(house->pids[worker]);
}

static void kill_worker(struct house *house, uint32_t worker) {
  CHECK_EQUAL(0, kill(house->pids[worker], SIGKILL));
  reap(house, worker, true);
  house->kills++;
}

/* Let batches flow until a moment. */
static void run_until(struct house *house, int64_t until_ns, uint64_t tickets_limit) {
  int64_t left_ns = until_ns - platform_now_ns();
  while (left_ns > 0) {
    trainer_place(&house->trainer, tickets_limit);
    if (!trainer_receive(&house->trainer)) {
      trainer_wait(&house->trainer, left_ns < 1000000 ? left_ns : 1000000);
    }
    left_ns = until_ns - platform_now_ns();
  }
}

/* Between death and reclaim: its answers count if the trainer looks; the rest is lost. */
static void bury(struct house *house, uint32_t worker) {
  if (random_below(&house->trainer.random, 2) == 0) trainer_receive(&house->trainer);
  trainer_lose(&house->trainer, worker);
  ledger_reclaim(house->fixture.ledger, worker);
  check_ledger(house->fixture.ledger);
}

/* One worker dies in the middle of the others' work and is replaced. */
static void replace_one(struct house *house) {
  uint64_t *random = &house->trainer.random;
  uint32_t worker = (uint32_t)random_below(random, WORKERS);
  kill_worker(house, worker);
  bury(house, worker);
  house->trainer.absent[worker] = true;
  if (random_below(random, 2) == 0) {
    run_until(house, platform_now_ns() + (int64_t)random_below(random, 2000000), TICKETS_MAX);
  }
  start_worker(house, worker);
}

/* All workers leave, killed or asked; their answers count or are given up; all start again. */
static void restart_all(struct house *house) {
  struct ledger *ledger = house->fixture.ledger;
  uint64_t *random = &house->trainer.random;
  bool killed = random_below(random, 2) == 0;
  if (!killed) ledger_stop(ledger, true);
  house->stops += !killed;
  for (uint32_t worker = 0; worker < WORKERS; worker++) {
    if (killed) {
      kill_worker(house, worker);
    } else {
      reap(house, worker, false);
    }
  }
  if (random_below(random, 2) == 0) trainer_receive(&house->trainer);
  trainer_lose(&house->trainer, ANYBODY);
  ledger_restart(ledger);
  check_ledger(ledger);
  check_resident(ledger);
  CHECK_EQUAL(0, ledger->counts[SLOT_PLACED] + ledger->counts[SLOT_READY]);
  for (uint32_t worker = 0; worker < WORKERS; worker++) start_worker(house, worker);
}

static void check_end(struct house *house) {
  struct ledger *ledger = house->fixture.ledger;
  drop_held(house);
  for (uint32_t worker = 0; worker < WORKERS; worker++) {
    CHECK(ledger_tell(ledger, worker, VERB_QUIT));
    reap(house, worker, false);
  }
  ledger_restart(ledger);
  check_ledger(ledger);
  check_resident(ledger);
  CHECK_EQUAL(SLOTS, ledger->counts[SLOT_FREE]);
  CHECK_EQUAL(house->trainer.kept, ledger->counts[SLOT_RETIRED]);
  CHECK_EQUAL(RANGES - SLOTS - house->trainer.kept, ledger->counts[SLOT_SPARE]);
}

static void go_round(struct fixture fixture) {
  struct house house = {.fixture = fixture};
  house.trainer = trainer_new(house.fixture.ledger, 1);
  house.trainer.keep = hold;
  house.trainer.keeper = &house;
  for (uint32_t worker = 0; worker < WORKERS; worker++) start_worker(&house, worker);
  for (struct limit limit = limit_of(0.5, 100000); limit_allows(&limit);) {
    int64_t life_ns = (int64_t)random_below(&house.trainer.random, 6000000);
    run_until(&house, platform_now_ns() + life_ns, TICKETS_MAX);
    if (random_below(&house.trainer.random, 4) == 0) {
      restart_all(&house);
    } else {
      replace_one(&house);
    }
  }
  trainer_finish(&house.trainer);
  check_end(&house);
  printf("delivered %" PRIu64 ", errors %" PRIu64 ", refused %" PRIu64 ", kept %" PRIu64
         ", killed %" PRIu64 ", stopped %" PRIu64 "\n",
         house.trainer.delivered, house.trainer.errors, house.trainer.refused, house.trainer.kept,
         house.kills, house.stops);
  trainer_close(&house.trainer);
  fixture_close(&house.fixture);
}

static struct fixture open_segment(void) {
  return fixture_open(WORKERS, SLOTS, RANGES, RING_PAGES);
}

TEST(tickets_come_once_whoever_dies) { go_round(open_segment()); }

TEST(guarded_tickets_too) {
  struct fixture fixture = open_segment();
  fixture_guard(&fixture);
  go_round(fixture);
}

/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The whole protocol in one process: workers as threads, and batches dropped by other threads while
 * the trainer collects their slots and places them again. One mapping, so that ThreadSanitizer sees
 * every plain access to orders, answers, requests and batches.
 */

#include "check.h"
#include "fixture.h"
#include "traffic.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

enum { WORKERS = 2, DROPPERS = 3, SLOTS = 6, RING_PAGES = 30, HELD_MOST = 3 };

/* Threads that read batches for a while and drop them. */
struct dropper {
  struct ledger *ledger;
  struct ring *ring;
  uint32_t capacity;
  struct ring_writer writer;
  pthread_t thread;
  uint64_t stream;
};

#define NO_MORE UINT32_MAX

static void *drop_leases(void *argument) {
  struct dropper *dropper = argument;
  struct ring_reader reader = ring_open_reader(dropper->ring, dropper->capacity);
  uint64_t random = random_start(dropper->stream);
  for (uint32_t slot = 0; slot != NO_MORE;) {
    if (!ring_pop(&reader, &slot)) {
      sched_yield();
    } else if (slot != NO_MORE) {
      struct lease *lease = &dropper->ledger->entries[slot].lease;
      if (random_below(&random, 4) == 0) sched_yield();
      check_batch(dropper->ledger, lease);
      lease_drop(lease);
    }
  }
  return NULL;
}

/* Give every dropper an alias of its own, and now and then keep one for longer. */
static void share_out(struct trainer *trainer, struct lease *lease) {
  struct dropper *droppers = trainer->keeper;
  for (int i = 0; i < DROPPERS; i++) {
    if (random_below(&trainer->random, 2) == 0) continue;
    lease_take(lease);
    CHECK(ring_push(&droppers[i].writer, lease->slot));
  }
  lease_drop(lease);
}

static void start_droppers(struct dropper *droppers, struct ledger *ledger) {
  for (int i = 0; i < DROPPERS; i++) {
    uint32_t capacity = ring_capacity(ledger->geometry.ranges + 1);
    struct dropper *dropper = &droppers[i];
    *dropper = (struct dropper){.ledger = ledger, .capacity = capacity};
    dropper->ring = aligned_alloc(CACHE_LINE, ring_bytes(capacity));
    CHECK(dropper->ring != NULL);
    dropper->stream = 20 + (uint64_t)i;
    ring_init(dropper->ring, UINT32_MAX - 9);
    dropper->writer = ring_open_writer(dropper->ring, capacity);
    CHECK_EQUAL(0, pthread_create(&dropper->thread, NULL, drop_leases, dropper));
  }
}

static void stop_droppers(struct dropper *droppers) {
  for (int i = 0; i < DROPPERS; i++) CHECK(ring_push(&droppers[i].writer, NO_MORE));
  for (int i = 0; i < DROPPERS; i++) {
    pthread_join(droppers[i].thread, NULL);
    free(droppers[i].ring);
  }
}

static void *work(void *argument) {
  struct desk *desk = argument;
  traffic_work(desk, 10 + desk->worker, (struct habits){.error_in = 20, .kept_in = 50});
  return NULL;
}

static void start_workers(struct fixture *fixture, pthread_t *threads) {
  for (uint32_t worker = 0; worker < WORKERS; worker++) {
    struct desk *desk = &fixture->desks[worker];
    /* On the trainer's mapping: at another address the sanitizer would see other memory. */
    desk_init(desk, fixture->ledger->base, fixture->fd, &fixture->geometry, worker);
    CHECK_EQUAL(0, pthread_create(&threads[worker], NULL, work, desk));
  }
}

static void stop_workers(struct fixture *fixture, pthread_t *threads) {
  for (uint32_t worker = 0; worker < WORKERS; worker++) {
    CHECK(ledger_tell(fixture->ledger, worker, VERB_QUIT));
  }
  for (uint32_t worker = 0; worker < WORKERS; worker++) pthread_join(threads[worker], NULL);
}

TEST(batches_come_once_and_stay_while_they_are_held) {
  CLOSED struct fixture fixture = fixture_open(WORKERS, SLOTS, 5 * SLOTS, RING_PAGES);
  struct trainer trainer = trainer_new(fixture.ledger, 1);
  struct dropper droppers[DROPPERS];
  pthread_t threads[WORKERS];
  uint64_t random = random_start(101);
  trainer.keep = share_out;
  trainer.keeper = droppers;
  start_workers(&fixture, threads);
  start_droppers(droppers, fixture.ledger);
  for (struct limit limit = limit_of(1, 10000000); limit_allows(&limit);) {
    trainer_place(&trainer, TICKETS_MAX);
    if (!trainer_receive(&trainer)) trainer_wait(&trainer, 1000000);
    /* The droppers' threads give pages back, while the same slots are used again. */
    if (random_below(&random, 8) == 0) {
      ledger_rest_leased(fixture.ledger, random_below(&random, 2) == 0);
    }
    check_ledger(fixture.ledger);
  }
  trainer_finish(&trainer);
  stop_workers(&fixture, threads);
  stop_droppers(droppers);
  ledger_restart(fixture.ledger);
  check_ledger(fixture.ledger);
  check_resident(fixture.ledger);
  CHECK_EQUAL(SLOTS, fixture.ledger->counts[SLOT_FREE]);
  CHECK_EQUAL(trainer.kept, fixture.ledger->counts[SLOT_RETIRED]);
  printf("delivered %" PRIu64 ", errors %" PRIu64 ", refused %" PRIu64 ", kept %" PRIu64 "\n",
         trainer.delivered, trainer.errors, trainer.refused, trainer.kept);
  CHECK(trainer.delivered > 0);
  trainer_close(&trainer);
}

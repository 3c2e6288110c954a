/* SPDX-License-Identifier: BSD-3-Clause */

/* The doorbell, one step at a time: when parking returns, with what, and that it parks at all. */

#include "check.h"
#include "doorbell.h"
#include "looks.h"

#include <signal.h>

#define MS INT64_C(1000000)

/* Longer than any machine needs for a wake, so that it passes only if the owner is not woken. */
#define NEVER_NS (20000 * MS)

/* As many looks as were made: one that was preempted has found nothing, whatever it saw. */
static uint64_t looks_made(const struct looks *looks) {
  return looks->found_count + looks->vain_count;
}

static const _Atomic uint32_t allowed = 1;

/* Look at a doorbell that was rung since, or was not, so often. Returns the number of looks. */
static uint64_t look(struct looks *looks, bool is_rung, int times) {
  struct doorbell bell = {0};
  uint64_t before = looks_made(looks);
  for (int i = 0; i < times; i++) {
    uint32_t seen = doorbell_count(&bell);
    if (is_rung) doorbell_ring(&bell);
    bool found = looks_try(looks, &allowed, &bell, seen);
    CHECK(is_rung || !found);
  }
  return looks_made(looks) - before;
}

TEST(a_look_finds_a_ring_that_came_since) {
  struct looks looks = {0};
  struct doorbell bell = {0};
  doorbell_ring(&bell);
  CHECK(looks_try(&looks, &allowed, &bell, 0));
  CHECK(!looks_try(&looks, &allowed, &bell, doorbell_count(&bell)));
  CHECK_EQUAL(2, looks_made(&looks));
  CHECK(looks.ns > 0);
}

/* They cost a core that others may need: most waits are without one then. */
TEST(looks_end_when_they_find_nothing) {
  struct looks looks = {0};
  CHECK_EQUAL(33, look(&looks, false, 33));
  looks.looked_ns = platform_now_ns();
  uint64_t made = look(&looks, false, 63);
  CHECK(made <= 1, "%" PRIu64 " looks though none had paid", made);
  CHECK_EQUAL(0, looks.found_count);
  /* Ever more rarely, but one in each second. */
  made = look(&looks, false, 4000);
  CHECK(made > 0 && made < 40, "%" PRIu64 " looks in 4000 waits", made);
  looks.looked_ns -= 2000 * MS;
  CHECK_EQUAL(1, look(&looks, false, 1));
}

TEST(looks_come_back_when_they_find_something) {
  struct looks looks = {0};
  look(&looks, false, 40);
  uint64_t made = look(&looks, true, 5000); /* a preempted one may be among the tries */
  CHECK(made > 2000, "%" PRIu64 " looks in 5000 waits", made);
}

TEST(parking_lasts_for_the_timeout) {
  struct doorbell bell = {0};
  uint32_t armed = doorbell_arm(&bell);
  int64_t before_ns = platform_now_ns();
  CHECK_EQUAL(-ETIMEDOUT, doorbell_park(&bell, armed, 20 * MS));
  int64_t parked_ns = platform_now_ns() - before_ns;
  CHECK(parked_ns >= 20 * MS, "parked for %" PRId64 " ns", parked_ns);
}

TEST(no_time_returns_at_once) {
  struct doorbell bell = {0};
  uint32_t armed = doorbell_arm(&bell);
  CHECK_EQUAL(-ETIMEDOUT, doorbell_park(&bell, armed, 0));
  CHECK_EQUAL(-ETIMEDOUT, doorbell_park(&bell, armed, -1));
}

/* An owner that died while parked leaves the announcement; the next owner is not disturbed. */
TEST(left_announcement_is_harmless) {
  struct doorbell bell = {0};
  doorbell_arm(&bell);
  doorbell_ring(&bell);
  uint32_t armed = doorbell_arm(&bell);
  CHECK_EQUAL(1, armed);
  CHECK_EQUAL(-ETIMEDOUT, doorbell_park(&bell, armed, MS));
}

static void on_signal(int signal_number) { (void)signal_number; }

/* A timer that sends SIGUSR1 again and again: one may come just before the owner parks. */
static timer_t timer_start(int64_t period_ns) {
  struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
  struct timespec period = platform_timespec(period_ns);
  struct itimerspec delay = {.it_value = period, .it_interval = period};
  timer_t timer;
  CHECK_EQUAL(0, timer_create(CLOCK_MONOTONIC, &event, &timer));
  CHECK_EQUAL(0, timer_settime(timer, 0, &delay, NULL));
  return timer;
}

/* A signal ends parking, even one whose handler restarts system calls (SA_RESTART). */
TEST(signal_ends_parking) {
  static const int flags[] = {0, SA_RESTART};
  for (size_t i = 0; i < LENGTH(flags); i++) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = flags[i]};
    CHECK_EQUAL(0, sigaction(SIGUSR1, &action, NULL));
    struct doorbell bell = {0};
    uint32_t armed = doorbell_arm(&bell);
    timer_t timer = timer_start(10 * MS);
    CHECK_EQUAL(-EINTR, doorbell_park(&bell, armed, NEVER_NS));
    timer_delete(timer);
  }
}

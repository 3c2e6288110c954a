/* SPDX-License-Identifier: BSD-3-Clause */

/* The doorbell, one step at a time: when parking returns, with what, and that it parks at all. */

#include "check.h"
#include "doorbell.h"

#include <signal.h>

#define MS INT64_C(1000000)

/* Longer than any machine needs for a wake, so that it passes only if the owner is not woken. */
#define NEVER_NS (20000 * MS)

static void bell_start(struct doorbell *bell, uint32_t start) {
  atomic_store(&bell->rings, start);
  atomic_store(&bell->parked, 0);
}

static void ring_before_arm_is_in_the_count(void) {
  struct doorbell bell = {0};
  doorbell_ring(&bell);
  CHECK_EQUAL(1, doorbell_arm(&bell));
}

static void ring_after_arm_ends_parking_at_once(void) {
  struct doorbell bell = {0};
  uint32_t armed = doorbell_arm(&bell);
  doorbell_ring(&bell);
  CHECK_EQUAL(0, doorbell_park(&bell, armed, NEVER_NS));
  doorbell_disarm(&bell);
}

/* The count passes 2^32 without a ring being taken for none. */
static void count_wraps(void) {
  struct doorbell bell;
  bell_start(&bell, UINT32_MAX);
  uint32_t armed = doorbell_arm(&bell);
  CHECK_EQUAL(UINT32_MAX, armed);
  doorbell_ring(&bell);
  CHECK_EQUAL(0, doorbell_park(&bell, armed, NEVER_NS));
  CHECK_EQUAL(0, doorbell_arm(&bell));
}

static void parking_lasts_for_the_timeout(void) {
  struct doorbell bell = {0};
  uint32_t armed = doorbell_arm(&bell);
  int64_t before_ns = platform_now_ns();
  CHECK_EQUAL(-ETIMEDOUT, doorbell_park(&bell, armed, 20 * MS));
  int64_t parked_ns = platform_now_ns() - before_ns;
  CHECK(parked_ns >= 20 * MS, "parked for %" PRId64 " ns", parked_ns);
}

static void no_time_returns_at_once(void) {
  struct doorbell bell = {0};
  uint32_t armed = doorbell_arm(&bell);
  CHECK_EQUAL(-ETIMEDOUT, doorbell_park(&bell, armed, 0));
  CHECK_EQUAL(-ETIMEDOUT, doorbell_park(&bell, armed, -1));
}

static void parked_is_announced_and_taken_back(void) {
  struct doorbell bell = {0};
  doorbell_arm(&bell);
  CHECK_EQUAL(1, atomic_load(&bell.parked));
  doorbell_disarm(&bell);
  CHECK_EQUAL(0, atomic_load(&bell.parked));
}

/* An owner that died while parked leaves the announcement; the next owner is not disturbed. */
static void left_announcement_is_harmless(void) {
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
static void signal_ends_parking(void) {
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

int main(int argc, char **argv) {
  check_start(argc, argv);
  printf("parking: %s\n", platform_has_futex() ? "futex" : "sleep");
  RUN(ring_before_arm_is_in_the_count);
  RUN(ring_after_arm_ends_parking_at_once);
  RUN(count_wraps);
  RUN(parking_lasts_for_the_timeout);
  RUN(no_time_returns_at_once);
  RUN(parked_is_announced_and_taken_back);
  RUN(left_announcement_is_harmless);
  RUN(signal_ends_parking);
}

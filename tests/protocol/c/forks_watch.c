/* SPDX-License-Identifier: BSD-3-Clause */

/* A worker ends with its trainer: as its child or not, even if the trainer is not reaped. */

#include "check.h"
#include "watch.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LONGEST_MS = 20000 };

/* The worker writes when its watchdog runs; after its end the pipe reads EOF. */
static int reading_end, writing_end;

static void open_pipe(void) {
  int ends[2];
  CHECK_EQUAL(0, pipe(ends));
  reading_end = ends[0], writing_end = ends[1];
}

static _Noreturn void sleep_on(void) {
  for (;;) pause();
}

static _Noreturn void be_worker(pid_t trainer) {
  signal(SIGALRM, SIG_DFL);
  alarm(2 * LONGEST_MS / 1000); /* if it survives all that should end it */
  CHECK_EQUAL(0, watch_start(trainer));
  CHECK_EQUAL(1, write(writing_end, "w", 1));
  sleep_on();
}

static void be_trainer(bool has_worker) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  pid_t me = getpid();
  if (has_worker && fork() == 0) be_worker(me);
  close(writing_end);
  sleep_on();
}

static pid_t start_trainer(bool has_worker) {
  pid_t trainer = fork();
  if (trainer == 0) be_trainer(has_worker);
  return trainer;
}

/* Wait for the worker's byte (returns 1) or its end (returns 0). */
static ssize_t read_worker(void) {
  char word;
  struct pollfd end = {.fd = reading_end, .events = POLLIN};
  CHECK(poll(&end, 1, LONGEST_MS) == 1, "the worker is still there");
  return read(reading_end, &word, 1);
}

static void finish(pid_t child) {
  CHECK_EQUAL(child, waitpid(child, NULL, 0));
}

TEST(child_ends_with_a_trainer_that_nobody_reaps) {
  open_pipe();
  pid_t trainer = start_trainer(true);
  close(writing_end);
  CHECK_EQUAL(1, read_worker());
  kill(trainer, SIGKILL);
  CHECK_EQUAL(0, read_worker());
  finish(trainer);
  close(reading_end);
}

TEST(other_process_ends_with_the_trainer) {
  open_pipe();
  pid_t trainer = start_trainer(false);
  pid_t worker = fork();
  if (worker == 0) be_worker(trainer);
  close(writing_end);
  CHECK_EQUAL(1, read_worker());
  kill(trainer, SIGKILL);
  finish(trainer);
  CHECK_EQUAL(0, read_worker());
  finish(worker);
  close(reading_end);
}

TEST(worker_of_a_trainer_that_is_gone_ends) {
  open_pipe();
  pid_t trainer = start_trainer(false);
  kill(trainer, SIGKILL);
  finish(trainer);
  pid_t worker = fork();
  if (worker == 0) be_worker(trainer);
  close(writing_end);
  while (read_worker() != 0) continue;
  finish(worker);
  close(reading_end);
}

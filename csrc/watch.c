/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A worker must not outlive its trainer, even when it is deep in user code that runs no Python of
 * ours, or blocked in a system call. So a thread waits for the trainer's end and ends the process.
 *
 * This watchdog waits for the trainer itself, by a pidfd: the parent's death signal follows the
 * thread that forked, and under a fork server the parent is another process. If there is no pidfd,
 * it looks twice a second; in a child of the trainer, at its parent's pid. It blocks all signals,
 * so they reach the threads that expect them, and it ends the process without running exit
 * handlers, which may wait for locks.
 *
 * Another one limits the time of exit functions, which may hang in native code that keeps Python's
 * lock. Python's own watchdog, of faulthandler, hangs in a process that was forked while its
 * parent's was running: its thread is waited for, and only the parent has it.
 */

#include "watch.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include "platform.h"

static void *watch_parent(void *argument) {
  platform_wait_for_end((int)(intptr_t)argument, true);
  _exit(1);
}

static void *watch_other(void *argument) {
  platform_wait_for_end((int)(intptr_t)argument, false);
  _exit(1);
}

static _Atomic bool is_limited;

static void *end_later(void *argument) {
  int64_t ms = (int64_t)(intptr_t)argument;
  struct timespec left = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
  while (nanosleep(&left, &left) != 0) {
    if (errno != EINTR) return NULL; /* the call is refused: there is no limit */
  }
  /* relaxed: the word says all. */
  if (atomic_load_explicit(&is_limited, memory_order_relaxed)) _exit(0);
  return NULL;
}

/* Start a thread that hears no signal. 0 or -errno. */
static int start_thread(void *(*run)(void *), int argument) {
  sigset_t all, before;
  pthread_t thread;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = pthread_create(&thread, NULL, run, (void *)(intptr_t)argument);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error != 0) return -error;
  pthread_detach(thread);
  return 0;
}

int watch_start(int pid) {
  return start_thread(getppid() == pid ? watch_parent : watch_other, pid);
}

int watch_limit(int ms) {
  /* relaxed: as above. */
  atomic_store_explicit(&is_limited, true, memory_order_relaxed);
  return start_thread(end_later, ms);
}

void watch_lift_limit(void) {
  /* relaxed: as above. */
  atomic_store_explicit(&is_limited, false, memory_order_relaxed);
}

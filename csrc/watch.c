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
 */

#include "watch.h"

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>

#include "platform.h"

static void *watch_parent(void *argument) {
  platform_wait_for_end((int)(intptr_t)argument, true);
  _exit(1);
}

static void *watch_other(void *argument) {
  platform_wait_for_end((int)(intptr_t)argument, false);
  _exit(1);
}

int watch_start(int pid) {
  sigset_t all, before;
  pthread_t thread;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  void *(*watch)(void *) = getppid() == pid ? watch_parent : watch_other;
  int error = pthread_create(&thread, NULL, watch, (void *)(intptr_t)pid);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error != 0) return -error;
  pthread_detach(thread);
  return 0;
}

/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Points at which a process can be killed, for tests: see csrc/debug/steps.h.
 *
 * The file is a table of counters that all processes of a loader share, under fork and under spawn,
 * because each maps it when this code is loaded. The test writes it beforehand: which
 * names there are, which of them kills, on which side (the trainer is known by its pid, all others
 * are workers), and from which passage on how many processes.
 *
 * Key invariant: each passage has its own number, because counting is one atomic addition. So
 * exactly one process dies for one number, the one that draws it; its replacement comes later and
 * passes. The time of death is written down before the signal, so that a test can say how long it
 * took until the death was noticed.
 *
 * A process ends itself with SIGKILL: no handler runs, nothing is flushed, and no instruction after
 * the step is executed.
 */

#include "debug/steps.h"

#include <stdlib.h>

#include "door.h"
#include "platform.h"

enum side { SIDE_TRAINER = 0, SIDE_WORKER = 1, SIDES = 2 };

/* One step. Its name is written before the processes start, its passages are counted by them. */
struct step {
  char name[56];
  _Atomic uint32_t passages[SIDES];
};

_Static_assert(sizeof(struct step) == 64, "kill_steps.py writes the same layout");

/* The file. Written by the test, but for the counts and the last death. */
struct steps {
  uint32_t count;       /* of steps; one more follows them, for names that are not listed */
  uint32_t trainer_pid;
  uint32_t step;        /* which of them kills; count or more: none */
  uint32_t side;
  uint32_t passage;     /* the first that kills, from 1 */
  uint32_t deaths;      /* how many passages kill, one after the other */
  _Atomic uint32_t died;
  int64_t died_ns;      /* by CLOCK_MONOTONIC */
  uint8_t unused[24];
  struct step steps[];
};

_Static_assert(offsetof(struct steps, steps) == 64, "kill_steps.py writes the same layout");

/* NULL: no test asked for anything. Set before any step, never changed. */
static struct steps *shared;

/* Runs when the extension is loaded. */
__attribute__((constructor)) static void map_steps(void) {
  shared = map_of_test("SHMLOADER_STEPS");
}

static void die(void) {
  shared->died_ns = platform_now_ns();
  /* relaxed: read after this process was reaped, or for its being zero. */
  atomic_fetch_add_explicit(&shared->died, 1, memory_order_relaxed);
  kill(getpid(), SIGKILL);
}

void step_passed(const char *name) {
  if (door_is_open()) door_step(name);
  if (shared == NULL) return;
  uint32_t side = (uint32_t)getpid() == shared->trainer_pid ? SIDE_TRAINER : SIDE_WORKER;
  uint32_t step = 0;
  while (step < shared->count && strcmp(shared->steps[step].name, name) != 0) step++;
  /* relaxed: the number alone decides, and each is given once. */
  uint32_t before = atomic_fetch_add_explicit(&shared->steps[step].passages[side], 1,
                                              memory_order_relaxed);
  if (step != shared->step || side != shared->side) return;
  if (before + 1 - shared->passage < shared->deaths) die();
}

void step_copy(const char *name, void *to, const void *from, size_t bytes) {
  size_t half = bytes / 2;
  memcpy(to, from, half);
  step_passed(name);
  memcpy((uint8_t *)to + half, (const uint8_t *)from + half, bytes - half);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_DOOR_H
#define SHMLOADER_DOOR_H

#include "debug/steps.h"

/*
 * The door behind which one process runs at a time, in a build with SHMLOADER_KILL_POINTS alone:
 * tests/simulation/README.md. It is open in processes of a simulated run, and closed in all others.
 */

/* Pass a step: others may go on first, and this process may be killed. */
void door_step(const char *name);

/* What follows is called by tests/simulation/door.py too, by name. */
#pragma GCC visibility push(default)

/* Begin a run as its first process, which is never killed; the file is written already. */
void door_begin(void);

/* This process takes no part any more, and has the turn for good. */
void door_close(void);

/* Before a fork: make a place for the child, which may be killed or not. Returns its number. */
uint32_t door_reserve(bool may_die);

/* In the child, or in a process that was there before: be that one, from when its turn has come. */
void door_arrive(uint32_t number);

/* Map the file that an environment variable names; NULL: it names none. */
void *map_of_test(const char *variable);

/*
 * Let others go on until something has happened or the time has come; the caller looks again.
 * has_acted: true if something may have happened since this process was here last.
 * Returns true if the time has come.
 */
bool door_look(int64_t deadline_ns, bool has_acted);

/* Let others go on until the time has come. */
void door_sleep(int64_t deadline_ns);

/* Wait until each process that was forked has said its pid, by which a killed one is known. */
void door_meet(void);

/* What this process looks at next it has not to be woken for. */
void door_polls(void);

/* This process ends at once, and is gone before any other goes on. */
void door_leave(void);

/* A signal that kills was sent to a process: it is gone when this returns. */
void door_killed(int pid);

#pragma GCC visibility pop

#endif

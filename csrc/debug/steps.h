/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_STEPS_H
#define SHMLOADER_STEPS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * What the sources call in a build with SHMLOADER_KILL_POINTS alone: death at any instruction, and
 * runs in which one process goes on at a time. Both are the tests': tests/simulation/c/.
 */

/* Pass a step, and die there if a test has said so. Any process, any thread. */
void step_passed(const char *name);

/* memcpy with a step in its middle. */
void step_copy(const char *name, void *to, const void *from, size_t bytes);

/* Returns true in a process of a simulated run. Any thread; wait-free. */
bool door_is_open(void);

/* platform_park and platform_unpark, in virtual time. */
int door_park(_Atomic uint32_t *word, uint32_t expected, int64_t timeout_ns);
void door_unpark(_Atomic uint32_t *word);

/* These shared bytes were copied out: in some runs their writer writes nonsense there then. */
void door_read_out(void *from, size_t bytes);

/* Called by tests/simulation/door.py too, by name. */
#pragma GCC visibility push(default)

/* The time in a simulated run; a clock that is read twice has gone on only by steps and waits. */
int64_t door_now_ns(void);

/* Pass a line of Python, numbered as the caller likes. */
void door_line(uint32_t number);

#pragma GCC visibility pop

/*
 * This process has a segment mapped, as its trainer or as one of its workers, from here on; and no
 * longer. In a simulated run it is looked at whether each shared word is written by its owner.
 */
struct geometry;
void owners_enter(uint8_t *base, const struct geometry *geometry, uint32_t seat);
void owners_leave(const uint8_t *base);

#define TRAINERS_SEAT UINT32_MAX /* in place of a worker's number */

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_STEPS_H
#define SHMLOADER_STEPS_H

#include <stddef.h>

/*
 * Death at any instruction, in a build with SHMLOADER_KILL_POINTS alone. Every STEP of the sources
 * calls in here; the environment's SHMLOADER_STEPS names a file that says where to die, and that
 * counts how often each step was passed. Without that variable a step does nothing.
 */

/* Count a passage of a step, and die there if this is the one. Any process, any thread. */
void step_passed(const char *name);

/* memcpy with a step in its middle. */
void step_copy(const char *name, void *to, const void *from, size_t bytes);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_GENERATION_H
#define SHMLOADER_GENERATION_H

#include <stdint.h>

/*
 * This process's number: no process that it was copied from, by however many forks, has the same.
 * Any thread; wait-free, except for the first call.
 */
uint64_t generation_now(void);

#endif

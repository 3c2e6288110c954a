/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_OWNERS_H
#define SHMLOADER_OWNERS_H

#include "segment.h"

/*
 * Which process may write which shared word, and a look at whether no other one has: in a build
 * with SHMLOADER_KILL_POINTS alone, in a simulated run.
 */

#define TRAINERS_SEAT UINT32_MAX /* in place of a worker's number */

/* This process has a segment mapped, as its trainer or as one of its workers, from here on. */
void owners_enter(uint8_t *base, const struct geometry *geometry, uint32_t seat);

/* The mapping ends here. */
void owners_leave(const uint8_t *base);

#if defined(SHMLOADER_KILL_POINTS)
#define OWNERS_ENTER(BASE, GEOMETRY, SEAT) owners_enter(BASE, GEOMETRY, SEAT)
#define OWNERS_LEAVE(BASE) owners_leave(BASE)
#else
#define OWNERS_ENTER(BASE, GEOMETRY, SEAT) ((void)(BASE), (void)(GEOMETRY), (void)(SEAT))
#define OWNERS_LEAVE(BASE) ((void)(BASE))
#endif

#endif

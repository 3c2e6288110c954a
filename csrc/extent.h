/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_EXTENT_H
#define SHMLOADER_EXTENT_H

#include "platform.h"

/*
 * Which addresses of this process lie in memory whose aliases a lease counts: segments and blocks.
 * extent.c opens with why it must be known, and why the answer is exact.
 */
struct extent;

/*
 * Enter memory that has just been mapped or allocated. One thread at a time, which is the one that
 * holds Python's lock; lock-free, but for the allocation of more places. NULL: no memory for one.
 */
struct extent *extent_enter(const void *start, uint64_t bytes);

/* Take it out, before the memory is given up. NULL: nothing happens. Any thread; lock-free. */
void extent_leave(struct extent *extent);

/* True if an address lies in an extent. Any thread that keeps the memory there; wait-free. */
bool extent_holds(const void *address);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_WATCH_OWNERS_H
#define SHMLOADER_WATCH_OWNERS_H

#include "segment.h"

/* From here on this process has that segment mapped, and no other one. */
void owners_watch(uint8_t *base, const struct geometry *geometry);

/* A process as the others know it. */
enum role { OF_NO_SEGMENT = 0, TRAINER = 1, FIRST_WORKER = 2 };

/* Returns true if a process of that role lives. */
typedef bool (*owners_lives)(uint32_t role);

/* The offset of a line that this process has written and that is not its own, + 1; 0: none. */
uint64_t owners_check(uint32_t role, uint8_t *before, owners_lives lives);

/* The part of a segment that is watched is no longer than this. */
#define OWNERS_BYTES (UINT64_C(1) << 16)

/* Returns true if that is the segment that is watched. */
bool owners_watches(const uint8_t *base);

/* Note what stands in the segment now, if this process has one mapped. */
void owners_note(uint8_t *before);

/* Returns the offset of an address in what is watched here, or OWNERS_BYTES. */
uint64_t owners_offset(const void *address);

/*
 * A worker writes nonsense: a cell that says that a slot has its answer, of all slots or of those
 * that the worker holds, as the number says; not what would pass for an answer, because a worker
 * may give any bits as its batch. It is in no state to go on after that.
 */
void owners_forge(uint32_t worker, uint64_t number);

/* This process takes part in no run any more. */
void owners_forget(void);

#endif

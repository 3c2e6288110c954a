/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_TESTS_ARENA_H
#define SHMLOADER_TESTS_ARENA_H

/*
 * A ledger and its workers' desks over a small segment, and checks that must hold whatever the
 * workers write. Before and behind the ledger's mapping lie closed pages, so that reading or
 * writing outside of the segment faults; the workers use a mapping of their own.
 */

#include "fixture.h"

enum { ARENA_WORKERS = 2, ARENA_RANGES = 5, ARENA_TABLE_BYTES = 4096 };

struct arena {
  struct fixture fixture;
  uint32_t aliases[ARENA_RANGES];     /* of each slot that is leased */
  uint8_t owned[ARENA_TABLE_BYTES];   /* which bytes the trainer writes: enum owner */
  uint8_t before[ARENA_TABLE_BYTES];  /* all bytes before the log, before a move */
  struct ledger_entry entries[ARENA_RANGES]; /* and the entries */
};

/* A segment of so many workers and slots, whose rings start shortly before their positions wrap. */
void arena_open(struct arena *arena, uint32_t workers, uint32_t slots, uint32_t ranges,
                uint64_t ring_pages);

/* Give everything up. With orphans the leases outlive the ledger's owner. */
void arena_close(struct arena *arena, bool orphans);

/* Note what is there before a move of the trainer. */
void arena_before(struct arena *arena);

/*
 * Check all that must hold after it, and that it wrote to no shared word that is not the trainer's.
 * Rings may have been opened anew: then the positions of their other ends are the trainer's too.
 */
void arena_after(const struct arena *arena, bool rings_opened);

/* Sit down anew at a worker's rings, as its replacement does. */
void arena_seat(struct arena *arena, uint32_t worker);

/* The last alias but some of a slot's lease is dropped. */
void arena_drop(struct arena *arena, uint32_t slot, uint32_t aliases_left);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_POLICY_H
#define SHMLOADER_POLICY_H

#include <stdint.h>

/*
 * The numbers that decide which pages and slots stay, grow or go back. shmloader/memory/policy.py
 * gives them, with their reasons; each ledger and each worker's memory has a copy that never
 * changes. `_part`: the n of "an n-th of". None is zero.
 */
struct policy {
  /* Slots. */
  uint64_t retired_part;      /* of the spares, for retired slots; the others are lent */
  uint64_t few_spares_part;   /* of the slots: the spares, if a limit keeps the segment short */
  uint64_t few_spares_min;    /* but at least so many */
  uint64_t comebacks_to_grow; /* leases that must end late before a slot is added */
  uint64_t late_rounds;       /* times the slots: batches after which a lease is kept, not late */
  /* Pages that wait. */
  uint64_t few_pages_bytes;  /* never given back while an epoch runs */
  uint64_t waiting_part;     /* of what was needed at once lately */
  uint64_t given_ahead_part; /* of what may stay, to be given back with the rest */
  uint64_t window_batches;   /* "lately" is one to two of these */
  uint64_t judged_batches;   /* whose sizes say if these are steady; at most DEMAND_SIZES */
  uint64_t smaller_part;     /* of them, which may be smaller than that */
  uint64_t steady_part;      /* of the largest, that the others must have */
  uint64_t mean_part;        /* the latest batch's weight in the mean */
  /* Pages that come. */
  uint64_t grown_part;   /* of a slot's pages, added with what it needs */
  uint64_t piece_max_bytes; /* between two looks at what is left */
  uint64_t reserve_bytes;   /* left to all other workers together */
  uint64_t private_bytes;   /* left to each of them besides */
  uint64_t shares_each;     /* parts of what is left, for each worker */
  uint64_t huge_at_once; /* huge pages made by one call */
  uint64_t huge_dear_ns; /* of a thread's time: one that takes more is the last */
  uint64_t cache_piece_max_bytes; /* that a process takes of a cache at once */
  uint64_t cache_pieces_part;     /* the same, of what is left of it */
  /* Leaves that leave a slot. */
  uint64_t moved_part;         /* of a leased batch */
  uint64_t moved_of_last_part; /* the same while slots are scarce */
  uint64_t shared_bytes;       /* that small leaves may have together */
  /* Looks. */
  uint64_t look_from_bytes; /* of pages: with fewer, memory is not looked at */
  uint64_t look_ns;
  uint64_t children_seldom_ns;
  uint64_t children_often_ns;
  uint64_t look_again_ns; /* of a worker that found no room */
  uint64_t hint_ns;       /* how long a worker waits for its hint to be heard */
};

#endif

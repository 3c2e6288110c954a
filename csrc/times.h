/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_TIMES_H
#define SHMLOADER_TIMES_H

/*
 * When a batch made its moves, in nanoseconds of the monotonic clock, which all processes of a
 * machine share. The worker notes its own in the slot's header, the trainer its own in the ledger,
 * and both together become a record of the log. Nothing is decided by them.
 */

#include "view.h"

/* How a worker made the batch in a slot. Written by the worker before it tells of its answer. */
struct slot_times {
  uint64_t taken_ns;
  uint64_t fetched_ns; /* the samples were there, and collating began */
  uint64_t written_ns;
  uint64_t blocked_ns;          /* of it waiting for pages */
  uint64_t blocked_fetching_ns; /* of that before fetched_ns */
  uint64_t longest_ns; /* of all samples, to a few milliseconds: see platform_coarse_ns */
  int64_t longest_index;
  uint32_t longest_position; /* VIEW_WHOLE_BATCH: the samples were not fetched one by one */
  uint32_t samples;
};

/* One batch that next() returned. Written by the trainer; the log keeps the latest. */
struct log_record {
  _Atomic uint64_t sequence; /* { records up to this one: 63..1, it is half written: 0 } */
  uint64_t ticket;
  uint64_t epoch;
  uint32_t worker;
  uint32_t slot;
  uint64_t taken_ns;
  uint64_t fetched_ns;
  uint64_t written_ns;
  uint64_t asked_ns; /* next() was called; earlier by all calls for this batch that raised */
  uint64_t returned_ns;
  _Atomic uint64_t released_ns; /* 0: held, as far as the trainer has seen */
  uint64_t blocked_ns;
  uint64_t blocked_fetching_ns;
  uint64_t parked_ns; /* of the time in next() */
  uint64_t bytes;     /* of the payload */
  uint64_t longest_ns;
  int64_t longest_index;
  uint32_t longest_position;
  uint32_t samples;
  uint64_t spill; /* 0: not; otherwise the reason, as the trainer numbers them, from 1 */
  uint64_t more[6];
};

_Static_assert(sizeof(struct slot_times) == CACHE_LINE, "a slot's times are one line");
_Static_assert(sizeof(struct log_record) == 3 * CACHE_LINE, "a record is three lines");

/* How many records the log keeps. */
#define LOG_RECORDS 2048u

#endif

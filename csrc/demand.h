/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_DEMAND_H
#define SHMLOADER_DEMAND_H

#include <stdbool.h>
#include <stdint.h>

#include "policy.h"

/*
 * What batches have needed lately, and so how many pages are worth keeping for the next ones. The
 * trainer's own; demand.c opens with the rules. All lengths are in bytes.
 */

struct demand {
  uint64_t sizes[POLICY_JUDGED_BATCHES]; /* of the last batches, in a ring */
  uint64_t batches;             /* noted so far */
  uint64_t mean_bytes;          /* of a batch; the latest weigh most */
  uint64_t peak_bytes;          /* most that was in use at once, in this window of batches */
  uint64_t last_peak_bytes;     /* in the window before */
  uint64_t ahead_bytes;         /* what nearly every batch needs, if sizes are steady; or 0 */
  uint64_t keep_bytes;          /* what the largest of them needs, if sizes are steady; or 0 */
};

/* Note the size of a batch. Wait-free. */
void demand_note(struct demand *demand, uint64_t batch_bytes);

/* Note how many bytes all batches in use need now. Wait-free. */
static inline void demand_rise(struct demand *demand, uint64_t used_bytes) {
  if (used_bytes > demand->peak_bytes) demand->peak_bytes = used_bytes;
}

/* The most that was in use at once within the last batches. Wait-free. */
static inline uint64_t demand_peak(const struct demand *demand) {
  bool is_rising = demand->peak_bytes > demand->last_peak_bytes;
  return is_rising ? demand->peak_bytes : demand->last_peak_bytes;
}

#endif

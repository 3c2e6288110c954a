/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * What batches have needed lately.
 *
 * Pages that exist are worth their memory while batches like those before will fill them: a page
 * made anew costs about as much time as copying into it. So two things are learnt.
 *
 * The peak: how much was in use at once within the last one to two windows of batches. A loop whose
 * habits repeat within a window keeps its pages; one large batch is forgotten after two.
 *
 * Whether sizes are steady: nearly all of the last batches are nearly as large as the largest of
 * them. (Not all: the last batch of an epoch is often a small one.) Only then is it
 * known what the next batch will need; otherwise pages are not made ahead, and none wait for an
 * epoch.
 *
 * Batches are judged again after each doubling of their number, then once per ring of sizes: the
 * first batch of all counts at once, and later ones cost next to nothing.
 */

#include "demand.h"

/* Copy the sizes in rising order; returns how many. */
static uint64_t sort_sizes(const struct demand *demand, uint64_t *sorted) {
  bool is_full = demand->batches >= POLICY_JUDGED_BATCHES;
  uint64_t count = is_full ? POLICY_JUDGED_BATCHES : demand->batches;
  for (uint64_t i = 0; i < count; i++) {
    uint64_t at = i;
    for (; at > 0 && sorted[at - 1] > demand->sizes[i]; at--) sorted[at] = sorted[at - 1];
    sorted[at] = demand->sizes[i];
  }
  return count;
}

static void judge(struct demand *demand) {
  uint64_t sorted[POLICY_JUDGED_BATCHES];
  uint64_t count = sort_sizes(demand, sorted);
  uint64_t nearly_all = sorted[count / POLICY_SMALLER_PART];
  uint64_t largest = sorted[count - 1];
  bool is_steady = nearly_all >= largest / POLICY_STEADY_PART;
  demand->ahead_bytes = is_steady ? nearly_all : 0;
  demand->keep_bytes = is_steady ? largest : 0;
}

static bool is_time_to_judge(uint64_t batches) {
  if (batches < POLICY_JUDGED_BATCHES) return (batches & (batches - 1)) == 0;
  return batches % POLICY_JUDGED_BATCHES == 0;
}

void demand_note(struct demand *demand, uint64_t batch_bytes) {
  uint64_t mean = demand->mean_bytes;
  uint64_t moved = mean - mean / POLICY_MEAN_PART + batch_bytes / POLICY_MEAN_PART;
  demand->mean_bytes = demand->batches == 0 ? batch_bytes : moved;
  demand->sizes[demand->batches++ % POLICY_JUDGED_BATCHES] = batch_bytes;
  if (is_time_to_judge(demand->batches)) judge(demand);
  if (demand->batches % POLICY_WINDOW_BATCHES == 0) {
    demand->last_peak_bytes = demand->peak_bytes;
    demand->peak_bytes = 0;
  }
}

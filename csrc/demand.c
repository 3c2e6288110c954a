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
static uint64_t sort_sizes(const struct demand *demand, uint64_t judged, uint64_t *sorted) {
  uint64_t count = demand->batches < judged ? demand->batches : judged;
  for (uint64_t i = 0; i < count; i++) {
    uint64_t at = i;
    for (; at > 0 && sorted[at - 1] > demand->sizes[i]; at--) sorted[at] = sorted[at - 1];
    sorted[at] = demand->sizes[i];
  }
  return count;
}

static void judge(struct demand *demand, const struct policy *policy) {
  uint64_t sorted[DEMAND_SIZES];
  uint64_t count = sort_sizes(demand, policy->judged_batches, sorted);
  uint64_t nearly_all = sorted[count / policy->smaller_part];
  uint64_t largest = sorted[count - 1];
  bool is_steady = nearly_all >= largest / policy->steady_part;
  demand->ahead_bytes = is_steady ? nearly_all : 0;
  demand->keep_bytes = is_steady ? largest : 0;
}

static bool is_time_to_judge(uint64_t batches, uint64_t judged) {
  if (batches < judged) return (batches & (batches - 1)) == 0;
  return batches % judged == 0;
}

void demand_note(struct demand *demand, const struct policy *policy, uint64_t batch_bytes) {
  uint64_t mean = demand->mean_bytes;
  uint64_t moved = mean - mean / policy->mean_part + batch_bytes / policy->mean_part;
  demand->mean_bytes = demand->batches == 0 ? batch_bytes : moved;
  demand->sizes[demand->batches++ % policy->judged_batches] = batch_bytes;
  if (is_time_to_judge(demand->batches, policy->judged_batches)) judge(demand, policy);
  if (demand->batches % policy->window_batches == 0) {
    demand->last_peak_bytes = demand->peak_bytes;
    demand->peak_bytes = 0;
  }
}

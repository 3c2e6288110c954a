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
 * Whether sizes are steady: three quarters of the last batches are at least half as large as the
 * largest of them. (Not all: the last batch of an epoch is often a small one.) Only then is it
 * known what the next batch will need; otherwise pages are not made ahead, and none wait for an
 * epoch.
 *
 * Batches are judged again after each doubling of their number, then once per ring of sizes: the
 * first batch of all counts at once, and later ones cost next to nothing.
 */

#include "demand.h"

#define WINDOW_BATCHES 32
#define MEAN_WEIGHT 8 /* the latest batch is an eighth of the mean */

static uint64_t count_sizes(const struct demand *demand) {
  return demand->batches < DEMAND_SIZES ? demand->batches : DEMAND_SIZES;
}

/* Copy the sizes in rising order; returns how many. */
static uint64_t sort_sizes(const struct demand *demand, uint64_t *sorted) {
  uint64_t count = count_sizes(demand);
  for (uint64_t i = 0; i < count; i++) {
    uint64_t at = i;
    for (; at > 0 && sorted[at - 1] > demand->sizes[i]; at--) sorted[at] = sorted[at - 1];
    sorted[at] = demand->sizes[i];
  }
  return count;
}

static void judge(struct demand *demand) {
  uint64_t sorted[DEMAND_SIZES];
  uint64_t count = sort_sizes(demand, sorted);
  uint64_t quarter = sorted[count / 4];
  uint64_t largest = sorted[count - 1];
  bool is_steady = quarter >= largest / 2;
  demand->ahead_bytes = is_steady ? quarter : 0;
  demand->keep_bytes = is_steady ? largest : 0;
}

static bool is_time_to_judge(uint64_t batches) {
  if (batches < DEMAND_SIZES) return (batches & (batches - 1)) == 0;
  return batches % DEMAND_SIZES == 0;
}

void demand_note(struct demand *demand, uint64_t batch_bytes) {
  uint64_t mean = demand->mean_bytes;
  uint64_t moved = mean - mean / MEAN_WEIGHT + batch_bytes / MEAN_WEIGHT;
  demand->mean_bytes = demand->batches == 0 ? batch_bytes : moved;
  demand->sizes[demand->batches++ % DEMAND_SIZES] = batch_bytes;
  if (is_time_to_judge(demand->batches)) judge(demand);
  if (demand->batches % WINDOW_BATCHES == 0) {
    demand->last_peak_bytes = demand->peak_bytes;
    demand->peak_bytes = 0;
  }
}

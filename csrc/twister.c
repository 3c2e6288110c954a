/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A permutation by the rule of Fisher and Yates: each place is swapped with one at or behind it.
 *
 * One at a time, each swap waits for a line of memory. So as many are drawn at once as the twister
 * has words: their places are computed, and asked of memory, before the first of them is swapped.
 */

#include "twister.h"

#define HALF 397u

bool twister_is_valid(const struct twister *self) {
  return self->left >= 1 && self->left - 1 <= TWISTER_WORDS &&
         self->next <= TWISTER_WORDS - (self->left - 1);
}

static inline uint32_t twisted(uint32_t high, uint32_t low) {
  uint32_t both = (high & 0x80000000u) | (low & 0x7fffffffu);
  return (both >> 1) ^ (low & 1 ? 0x9908b0dfu : 0u);
}

static void twist(struct twister *self) {
  uint32_t *words = self->words;
  for (uint32_t i = 0; i < TWISTER_WORDS - HALF; i++)
    words[i] = words[i + HALF] ^ twisted(words[i], words[i + 1]);
  for (uint32_t i = TWISTER_WORDS - HALF; i < TWISTER_WORDS - 1; i++)
    words[i] = words[i + HALF - TWISTER_WORDS] ^ twisted(words[i], words[i + 1]);
  words[TWISTER_WORDS - 1] = words[HALF - 1] ^ twisted(words[TWISTER_WORDS - 1], words[0]);
  self->left = TWISTER_WORDS + 1;
  self->next = 0;
}

static inline uint32_t tempered(uint32_t word) {
  word ^= word >> 11;
  word ^= (word << 7) & 0x9d2c5680u;
  word ^= (word << 15) & 0xefc60000u;
  return word ^ (word >> 18);
}

/* Take up to most words that lie side by side, which the caller reads. Returns how many. */
static uint32_t take(struct twister *self, uint64_t most, const uint32_t **words) {
  if (self->left == 1) twist(self);
  uint32_t count = self->left - 1 < most ? self->left - 1 : (uint32_t)most;
  *words = self->words + self->next;
  self->next += count;
  self->left -= count;
  return count;
}

void twister_skip(struct twister *self, uint64_t draws) {
  const uint32_t *words;
  while (draws > 0) draws -= take(self, draws, &words);
}

void twister_permute(struct twister *self, int64_t *numbers, uint64_t count) {
  for (uint64_t i = 0; i < count; i++) numbers[i] = (int64_t)i;
  uint32_t ahead[TWISTER_WORDS]; /* how far behind its place each number's partner is */
  while (count > 1) {
    const uint32_t *words;
    uint32_t drawn = take(self, count - 1, &words);
    for (uint32_t i = 0; i < drawn; i++) {
      ahead[i] = tempered(words[i]) % (uint32_t)(count - i);
      platform_prefetch_own(numbers + i + ahead[i]);
    }
    for (uint32_t i = 0; i < drawn; i++) {
      int64_t kept = numbers[i];
      numbers[i] = numbers[i + ahead[i]];
      numbers[i + ahead[i]] = kept;
    }
    numbers += drawn;
    count -= drawn;
  }
}

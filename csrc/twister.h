/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_TWISTER_H
#define SHMLOADER_TWISTER_H

#include "platform.h"

/*
 * MT19937 as torch's generators keep it, and torch's permutation from it: the same numbers, and the
 * same state afterwards. Private memory of one thread.
 */

#define TWISTER_WORDS 624u

struct twister {
  uint32_t words[TWISTER_WORDS];
  uint32_t left; /* words that were not drawn yet, and one */
  uint32_t next; /* the first of those */
};

/* Returns false for what no generator says: then nothing else may be called. */
bool twister_is_valid(const struct twister *self);

/* Leave out so many numbers of 32 bits. */
void twister_skip(struct twister *self, uint64_t draws);

/*
 * Write the numbers below count in an order that is drawn, which takes count - 1 draws. count is
 * below 2^32. Where they do not fit into the caches, most of the time is waiting for memory.
 */
void twister_permute(struct twister *self, int64_t *numbers, uint64_t count);

#endif

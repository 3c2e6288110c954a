/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_CELL_H
#define SHMLOADER_CELL_H

/*
 * A value in a ring: what happens, and to which slot, { verb: 31..24, slot: 23..0 }. It is
 * one word, so that a cell is read and written whole.
 */

#include <stdint.h>

enum verb {
  VERB_PLACE = 1,   /* trainer: the slot holds a request for you */
  VERB_RESUME = 2,  /* trainer: start the next epoch (the seed stands in the worker block) */
  VERB_QUIT = 3,    /* trainer: leave */
  VERB_READY = 4,   /* worker: the slot holds the answer */
  VERB_WANT = 5,    /* worker: the batch needs a larger grant, and I wait */
  VERB_RESUMED = 6, /* worker: next epoch started */
};

#define SLOT_BITS 24
#define SLOT_MASK ((UINT32_C(1) << SLOT_BITS) - 1)
#define SLOTS_MAX (UINT32_C(1) << (SLOT_BITS - 1))

static inline uint32_t cell_make(enum verb verb, uint32_t slot) {
  return (uint32_t)verb << SLOT_BITS | slot;
}
static inline uint32_t cell_verb(uint32_t cell) { return cell >> SLOT_BITS; }
static inline uint32_t cell_slot(uint32_t cell) { return cell & SLOT_MASK; }

#endif

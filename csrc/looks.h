/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_LOOKS_H
#define SHMLOADER_LOOKS_H

#include "doorbell.h"

/*
 * Looks at a doorbell before its owner parks; looks.c says when there is one.
 *
 * What the looks of one owner have found: private to its process. All zeros is how it begins.
 */
struct looks {
  uint64_t in_vain;   /* a bit for each of the last 64, the newest lowest: it found nothing */
  uint32_t tries;     /* in a row that found something, while looks do not pay */
  uint64_t waits;     /* since the last look, while looks do not pay */
  uint64_t every;     /* a try after so many of them */
  int64_t looked_ns;  /* when the last one ended */
  uint64_t found_count;
  uint64_t vain_count;
  uint64_t ns; /* that all of them took */
};

/* Say whether there is a core for each process that looks. Only the writer of the word. */
static inline void looks_allow(_Atomic uint32_t *may_look, bool may) {
  /* relaxed: a process that reads it late looks once more, or once less. */
  atomic_store_explicit(may_look, may, memory_order_relaxed);
  STEP("looks: allowed");
}

/*
 * Look whether the doorbell is rung, for some 20 us at most, if that is allowed and pays. Only the
 * owner. seen: doorbell_count before the owner last looked for news.
 * True: it was, so there may be news. False: park.
 */
bool looks_try(struct looks *looks, const _Atomic uint32_t *may_look, struct doorbell *bell,
               uint32_t seen);

#endif

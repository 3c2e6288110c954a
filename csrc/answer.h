/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_ANSWER_H
#define SHMLOADER_ANSWER_H

/*
 * The worker's half of a slot's header: what lies in the slot now, or how large a grant it needs.
 *
 * Written by the worker that holds the slot, read by the trainer when a cell names the slot. The
 * trainer trusts no word of it: it copies the answer out, checks the copy, and uses the copy.
 */

#include "words.h"

enum answer_kind {
  ANSWER_BATCH = 1,
  ANSWER_ERROR = 2,   /* an exception of user code, as a batch of one object */
  ANSWER_END = 3,     /* this worker's iterable dataset is exhausted */
  ANSWER_NOTHING = 4, /* a request skipped, because the worker is past its end */
};

/* The answer's flag: an alias of the slot is still alive in the worker. */
#define ANSWER_KEPT 1u

struct slot_answer {
  uint64_t ticket; /* the order's, repeated */
  uint16_t kind;
  uint16_t flags; /* { ANSWER_KEPT: 0 } */
  uint32_t snapshot_bytes; /* after the layout: where another worker could go on from here */
  uint64_t payload_bytes; /* leaves lie in [0, payload_bytes) */
  uint64_t layout_offset;
  uint64_t layout_bytes;
  uint64_t pages_bytes;   /* pages that exist now */
  uint64_t want_bytes;    /* with VERB_WANT: the grant that the batch needs */
  uint64_t pickled_bytes; /* how much of the payload is a pickle */
};

_Static_assert(sizeof(struct slot_answer) == CACHE_LINE, "an answer is one line");

/* The end of an answer's bytes in its slot, layout and snapshot included. */
static inline uint64_t answer_end(const struct slot_answer *answer) {
  uint64_t end = answer->layout_offset + answer->layout_bytes + answer->snapshot_bytes;
  return end > answer->payload_bytes ? end : answer->payload_bytes;
}

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_ORDER_H
#define SHMLOADER_ORDER_H

/*
 * The trainer's half of a slot's header: what the worker must do. The request itself, the indices,
 * stands at the start of the slot.
 *
 * Written by the trainer alone, read by the worker between take and commit. So while a slot is FREE
 * the trainer has the order to itself: it builds one in private memory and copies it here, atomics
 * included, and the push of the slot's cell publishes it. From then until the answer, grant_bytes
 * and refused_bytes alone may change.
 */

#include "platform.h"

/* How the request in a slot is written. */
enum request_kind {
  REQUEST_INDICES = 1, /* a list of int64 */
  REQUEST_INDEX = 2,   /* one int64 */
  REQUEST_NONES = 3,   /* a list of None; one int64 says how many */
  REQUEST_PICKLED = 4,
};

/* The order's mode: hand out no slot memory, copy the batch in. */
#define ORDER_COPY_IN 1u
/* The order's mode: leave a canary behind the batch. */
#define ORDER_GUARDED 2u

struct slot_order {
  alignas(CACHE_LINE) uint64_t ticket;
  uint64_t request_bytes;
  uint64_t pages_bytes;  /* pages that exist from the slot's start */
  uint64_t expect_bytes; /* how large the batch will probably be */
  uint32_t request_kind;
  uint32_t mode;
  /* Raised while the worker waits, hence atomic: bytes of the range that it may fill. */
  _Atomic uint64_t grant_bytes;
  /* The want that was refused; 0: none. A later, smaller want is asked anew. */
  _Atomic uint64_t refused_bytes;
};

_Static_assert(sizeof(struct slot_order) == CACHE_LINE, "an order is one line");

/* What the worker may fill, raised by the trainer while it waits. Any process; wait-free. */
static inline uint64_t order_grant(struct slot_order *order) {
  /* sync granted-A <- granted-R: the ledger has counted what is granted. */
  return atomic_load_explicit(&order->grant_bytes, memory_order_acquire);
}

/* The want that was refused last, or 0. Any process; wait-free. */
static inline uint64_t order_refused(struct slot_order *order) {
  /* sync refused-A <- refused-R: the trainer has read the want and will not read it again. */
  return atomic_load_explicit(&order->refused_bytes, memory_order_acquire);
}

#endif

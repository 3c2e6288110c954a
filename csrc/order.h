/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_ORDER_H
#define SHMLOADER_ORDER_H

/*
 * The trainer's half of a slot's header: what the worker must do. The request itself, the indices,
 * stands at the start of the slot.
 *
 * Written by the trainer alone, read by the worker between take and commit. The trainer builds an
 * order in private memory and copies it here while the slot is FREE; last it writes in_force, by
 * which it holds. From then until the answer, grant_bytes and refused_bytes alone may
 * change. When the answer was received, or the worker reaped, the trainer ends the order: so a slot
 * that is not PLACED has no order in force, and a worker refuses a cell that names it.
 */

#include "words.h"

/* How the request in a slot is written. */
enum request_kind {
  REQUEST_INDICES = 1, /* a list of int64 */
  REQUEST_INDEX = 2,   /* one int64 */
  REQUEST_NONES = 3,   /* a list of None; one int64 says how many */
  REQUEST_PICKLED = 4,
  REQUEST_RECORD = 5, /* its leaves are used where they lie, so the answer comes behind it */
};

/* The order's mode: hand out no slot memory, copy the batch in. */
#define ORDER_COPY_IN 1u
/* The order's mode: leave a canary after the batch. */
#define ORDER_GUARDED 2u
/* The order's mode: its request is preceded by the numbers of its epoch and of its batch there. */
#define ORDER_NUMBERED 4u
#define ORDER_MODES (ORDER_COPY_IN | ORDER_GUARDED | ORDER_NUMBERED)
/* Bytes of those two words. */
#define ORDER_NUMBERS_BYTES UINT64_C(16)

struct slot_order {
  uint64_t ticket;
  uint64_t request_bytes;
  uint64_t pages_bytes;  /* pages that exist from the slot's start */
  uint64_t expect_bytes; /* how large the batch will probably be */
  uint32_t request_kind;
  uint32_t mode; /* { ORDER_NUMBERED: 2, ORDER_GUARDED: 1, ORDER_COPY_IN: 0 } */
  /* Raised while the worker waits, hence atomic: bytes of the range that it may fill. */
  _Atomic uint64_t grant_bytes;
  /* The want that was refused; 0: none. A later, smaller want is asked anew. */
  _Atomic uint64_t refused_bytes;
  /* The order in force: { worker + 1: 63..47, ticket's low bits: 46..0 }; 0: none is. */
  _Atomic uint64_t in_force;
};

/* All but in_force, which is written last. */
#define ORDER_BYTES offsetof(struct slot_order, in_force)

_Static_assert(sizeof(struct slot_order) == CACHE_LINE, "an order is one line");
_Static_assert(ORDER_BYTES % sizeof(uint64_t) == 0, "an order is copied in words");

/*
 * What in_force is for an order: never 0, and another one for each worker and ticket. So a worker
 * that loads it, and then the order, while the next order is being written, finds that they differ.
 */
static inline uint64_t order_mark(uint32_t worker, uint64_t ticket) {
  return (uint64_t)(worker + 1) << 47 | (ticket & ((UINT64_C(1) << 47) - 1));
}

/* Put the order that was copied here in force. Trainer only; wait-free. */
static inline void order_begin(struct slot_order *order, uint64_t mark) {
  /* sync ordered-R -> ordered-A: the order and its request are whole before it is in force. */
  atomic_store_explicit(&order->in_force, mark, memory_order_release);
  STEP("order: in force");
}

/* End an order: its answer is here, or its worker was reaped. Trainer only; wait-free. */
static inline void order_end(struct slot_order *order) {
  /* relaxed: a worker that still loads the old mark has taken that ticket before. */
  atomic_store_explicit(&order->in_force, 0, memory_order_relaxed);
  STEP("order: ended");
}

/* Copy an order out, without its mark, and return the mark. Any process; wait-free. */
static inline uint64_t order_read(struct slot_order *order, struct slot_order *copy) {
  /* sync ordered-A <- ordered-R: the whole order and its request are visible from here. */
  uint64_t mark = atomic_load_explicit(&order->in_force, memory_order_acquire);
  words_read(copy, order, ORDER_BYTES);
  return mark;
}

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

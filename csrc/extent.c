/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A list of the memory whose aliases a lease counts: each segment as this process maps it, and each
 * block. torch sends a storage to another process by moving it to other memory, after which the
 * old memory has an alias less, even if an ndarray still points there. So a storage is sent as a
 * clone if it lies in an extent. A wrong "no" lets that ndarray read a later batch; a wrong "yes"
 * sends a clone of memory that the user wants to share.
 *
 * An extent is in use while its start is not zero, and its end changes only while it is zero. So a
 * reader that finds a start, an end, and the same start again has found two numbers that belonged
 * together at some moment of the call. The caller keeps the memory at that address alive, so what
 * held at one moment of the call holds throughout, and the answer is exact: an extent that leaves
 * or enters meanwhile is another one.
 *
 * Places come in chunks that are never freed, only used again, so a reader may be late. Vacant
 * ones stand on a stack (Treiber's) onto which any thread pushes, and from which one thread at a
 * time pops: what it sees on top cannot leave and come back meanwhile, so there is no ABA problem.
 *
 * A fork copies all of it together with the memory that it describes. If another thread was just
 * about to push a vacant place, the child never uses that place again; nothing else is lost.
 */

#include "extent.h"

#include <stdlib.h>

enum { CHUNK_EXTENTS = 128 };

struct extent {
  _Atomic uintptr_t start; /* 0: vacant */
  _Atomic uintptr_t end;
  struct extent *next_vacant; /* while it stands on the stack */
};

struct chunk {
  struct chunk *older;
  struct extent extents[CHUNK_EXTENTS];
};

static _Atomic(struct chunk *) newest;
static _Atomic(struct extent *) vacant;

static void push_vacant(struct extent *extent) {
  /* relaxed: a first guess at the top, corrected by the exchange. */
  struct extent *top = atomic_load_explicit(&vacant, memory_order_relaxed);
  do {
    extent->next_vacant = top;
    /* sync vacant-R -> vacant-A: it is seen with its next_vacant, and with a start of zero. */
  } while (!atomic_compare_exchange_weak_explicit(&vacant, &top, extent, memory_order_release,
                                                  memory_order_relaxed));
}

static bool add_chunk(void) {
  struct chunk *chunk = calloc(1, sizeof *chunk);
  if (chunk == NULL) return false;
  /* relaxed: only the caller, one thread at a time, adds chunks. */
  chunk->older = atomic_load_explicit(&newest, memory_order_relaxed);
  /* sync chunk-R -> chunk-A: its extents are vacant before a reader looks at them. */
  atomic_store_explicit(&newest, chunk, memory_order_release);
  for (int i = 0; i < CHUNK_EXTENTS; i++) push_vacant(&chunk->extents[i]);
  return true;
}

static struct extent *pop_vacant(void) {
  /* sync vacant-A <- vacant-R: what was pushed is whole, and its start is zero. */
  struct extent *top = atomic_load_explicit(&vacant, memory_order_acquire);
  /* sync vacant-A <- vacant-R: as above, for what another thread has pushed meanwhile. */
  while (top != NULL && !atomic_compare_exchange_weak_explicit(&vacant, &top, top->next_vacant,
                                                               memory_order_acquire,
                                                               memory_order_acquire)) {
    continue;
  }
  return top;
}

struct extent *extent_enter(const void *start, uint64_t bytes) {
  struct extent *extent = pop_vacant();
  if (extent == NULL && add_chunk()) extent = pop_vacant();
  if (extent == NULL) return NULL;
  /* sync end-R -> end-A: with this end, a start of zero is visible, or a later one. */
  atomic_store_explicit(&extent->end, (uintptr_t)start + bytes, memory_order_release);
  /* sync start-R -> start-A: the end that belongs to it is visible. */
  atomic_store_explicit(&extent->start, (uintptr_t)start, memory_order_release);
  return extent;
}

void extent_leave(struct extent *extent) {
  if (extent == NULL) return;
  /* relaxed: the memory is given up only afterwards, through the kernel or malloc. */
  atomic_store_explicit(&extent->start, 0, memory_order_relaxed);
  push_vacant(extent);
}

static bool holds(struct extent *extent, uintptr_t address) {
  /* sync start-A <- start-R: its end, or a later one, is visible. */
  uintptr_t start = atomic_load_explicit(&extent->start, memory_order_acquire);
  if (start == 0 || address < start) return false;
  /* sync end-A <- end-R: the next load sees a start that is at least as late. */
  uintptr_t end = atomic_load_explicit(&extent->end, memory_order_acquire);
  /* relaxed: ordered after the load of the end. */
  return address < end && atomic_load_explicit(&extent->start, memory_order_relaxed) == start;
}

bool extent_holds(const void *address) {
  /* sync chunk-A <- chunk-R: the chunk is filled in. */
  struct chunk *chunk = atomic_load_explicit(&newest, memory_order_acquire);
  for (; chunk != NULL; chunk = chunk->older) {
    for (int i = 0; i < CHUNK_EXTENTS; i++) {
      if (holds(&chunk->extents[i], (uintptr_t)address)) return true;
    }
  }
  return false;
}

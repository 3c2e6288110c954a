/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_FEED_H
#define SHMLOADER_FEED_H

/*
 * What a publisher and one subscriber share: a file of their own, with two rings, one each way, and
 * the subscriber's doorbell. The batches stay where they are, mostly in slots of a segment that the
 * subscriber may only read.
 *
 *   feed_block | ring of news --> subscriber | ring of replies --> publisher | entries | area
 *
 * A cell names a verb and a place. The publisher chooses a free place, writes its entry, and pushes
 * the cell; the place is its own again when the subscriber's reply names it, or when the subscriber
 * has skipped the epoch or is gone. Behind the entries lies what is in no slot, such as a spilled
 * batch.
 *
 * Key invariant: each word has one writer. A batch's lease lasts until every subscriber that was
 * told of it has replied, or is gone, or was given up. So a batch does not change while it is
 * copied, but for one case: the subscriber was given up meanwhile, as it was stopped. It asks
 * feed_is_given_up after each copy, before it uses what it has copied.
 *
 * Death. Each side knows the other's by the kernel; what it leaves in the rings moves nothing.
 */

#include "answer.h"
#include "cell.h"
#include "doorbell.h"
#include "ring.h"

/*
 * The verbs of news, from the publisher. BEGIN, END and LEFT name an epoch in place of a place, as
 * SKIP does: a cell has the low bits of its number, and feed_epoch finds the rest.
 */
enum feed_news {
  FEED_BATCH = 1,
  FEED_BEGIN = 2,
  FEED_END = 3,    /* said after the epoch's last batch alone */
  FEED_CLOSED = 4, /* nothing more comes */
  FEED_FAILED = 5, /* nothing more comes; the place has a pickled exception */
  FEED_LEFT = 6,   /* the epoch has more batches, and they do not come */
};

/* The verbs of replies, from the subscriber. */
enum feed_reply {
  FEED_RETURN = 1, /* the place is read */
  FEED_SKIP = 2,   /* what was told of this epoch, and will be, is not read */
};

/* How many batches may be before a subscriber; and cells, of which some are of skipped epochs. */
#define FEED_PLACES 1024u
#define FEED_CAPACITY (2 * FEED_PLACES)

/* Where a batch lies. Written by the publisher while the place is free, read by the subscriber. */
struct feed_entry {
  alignas(CACHE_LINE) uint64_t segment; /* 0: this file; otherwise the number of a segment's */
  uint64_t offset;                      /* in that file */
  alignas(CACHE_LINE) struct slot_answer answer;
};

struct feed_block {
  struct doorbell doorbell; /* rung by the publisher */
  /* Written by the publisher: 1 once it counts on this subscriber no more. */
  alignas(CACHE_LINE) _Atomic uint32_t given_up;
  /* Written by the publisher: 1 while there are cores for looks before parking (looks.c). */
  _Atomic uint32_t may_look;
};

static inline struct ring *feed_news_ring(struct feed_block *block) {
  return (struct ring *)(block + 1);
}

static inline struct ring *feed_reply_ring(struct feed_block *block) {
  return (struct ring *)((uint8_t *)feed_news_ring(block) + ring_bytes(FEED_CAPACITY));
}

static inline struct feed_entry *feed_entry_at(struct feed_block *block, uint32_t place) {
  uint8_t *entries = (uint8_t *)feed_reply_ring(block) + ring_bytes(FEED_CAPACITY);
  return (struct feed_entry *)entries + place;
}

/* The length of what is mapped; the area begins there. */
static inline uint64_t feed_bytes(void) {
  uint64_t bytes = sizeof(struct feed_block) + 2 * ring_bytes(FEED_CAPACITY) +
                   FEED_PLACES * sizeof(struct feed_entry);
  return (bytes + 4095) / 4096 * 4096;
}

/*
 * The number of an epoch that a subscriber named, by its low bits and the newest that it was told
 * of: fewer epochs than SLOT_MASK find room in a ring. Negative: there was none. Pure.
 */
static inline int64_t feed_epoch(uint64_t newest, uint32_t low) {
  return (int64_t)(newest - ((newest - low) & SLOT_MASK));
}

/* Say that a subscriber is given up, before what it may be copying goes. Publisher only. */
static inline void feed_give_up(struct feed_block *block) {
  /* sync forsaken-R -> forsaken-A: it says so before any byte of a batch that it reads changes. */
  atomic_store_explicit(&block->given_up, 1, memory_order_release);
  /* sync forsaken-R -> forsaken-A: as above, for the stores that come after this one. */
  atomic_thread_fence(memory_order_release);
  STEP("feed: forsaken");
}

/* True if what was copied before may be torn. Subscriber only; wait-free. */
static inline bool feed_is_given_up(struct feed_block *block) {
  /* sync forsaken-A <- forsaken-R: a copy of a byte that changed since is followed by a 1 here. */
  atomic_thread_fence(memory_order_acquire);
  /* sync forsaken-A <- forsaken-R: as above. */
  return atomic_load_explicit(&block->given_up, memory_order_acquire) != 0;
}

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_LEDGER_H
#define SHMLOADER_LEDGER_H

#include "lease.h"
#include "segment.h"

/*
 * The trainer's side of the moves of a slot, in private memory. ledger.c opens with the states, the
 * key invariant and what happens if a process dies.
 */

enum slot_state {
  SLOT_FREE = 0,
  SLOT_PLACED = 1,
  SLOT_READY = 2,
  SLOT_LEASED = 3,
  SLOT_RETIRED = 4,
  SLOT_SPARE = 5,   /* never used so far; takes the place of a retired slot */
  SLOT_FORKED = 6,  /* released here, but a forked child may still read it */
  SLOT_STATES = 7,
};

struct ledger_entry {
  struct lease lease;
  uint32_t state;
  uint32_t worker;
  uint64_t ticket;
  uint64_t grant_bytes;
  uint64_t pages_bytes;      /* pages known to exist */
  uint64_t want_bytes;       /* the grant that its worker waits for; 0: none */
  struct slot_answer answer; /* copied out when it was received */
  int64_t leased_ns;         /* when the lease began */
  uint32_t children;         /* forked children that may read it */
  _Atomic uint32_t next_released;
  bool retire; /* on release, do not reuse */
};

struct guard;

/* The trainer's truth about one segment. Only its thread uses the fields, except for two. */
struct ledger {
  uint8_t *base;
  int fd;
  struct geometry geometry;
  /* One for the iterator's owner and one for each slot that is leased: unmaps at zero. */
  _Atomic uint32_t references;
  /* Head of the stack of slots whose last alias died: index + 1, or 0. Any thread pushes. */
  _Atomic uint32_t released;
  struct ledger_entry *entries; /* geometry.ranges many */
  struct ring_writer *task_rings;
  struct ring_reader *ready_rings;
  uint32_t *free_slots; /* a stack: the slot freed last is the warmest */
  uint32_t free_count;
  uint32_t next_spare;
  uint32_t next_worker; /* where the next look for news starts */
  uint32_t counts[SLOT_STATES];
  uint32_t wanting; /* how many slots have a want_bytes */
  uint64_t ring_bytes;      /* ceiling for committed_bytes */
  uint64_t share_bytes;     /* the grant that every slot gets without asking */
  uint64_t expect_bytes;    /* how large a batch probably is; 0: not known yet */
  uint64_t committed_bytes; /* pages that exist or may be made without asking */
  uint64_t kept_bytes;      /* the part of it that waits for others: leased, forked, retired */
  struct guard *guard;      /* NULL: uses of the slots are not watched; see guard.h */
};

/* A worker's message. */
struct news {
  uint32_t worker;
  uint32_t verb; /* VERB_READY, VERB_WANT, VERB_RESUMED, or 0: see broken */
  uint32_t slot;
  const char *broken; /* with verb 0: which check failed */
};

/*
 * Make the ledger of a mapped, zeroed segment: slots of its ranges start FREE, the rest SPARE.
 * Owns the mapping and fd from here on. NULL: no memory, or slots is 0 or more than the ranges;
 * then mapping and fd are still the caller's.
 */
struct ledger *ledger_new(uint8_t *base, int fd, const struct geometry *geometry, uint32_t slots,
                          uint64_t ring_bytes);

/* Give up one reference; the mapping goes when the last lease has ended. Any thread. */
void ledger_unref(struct ledger *ledger);

/*
 * Write a request into a FREE slot and push it to a worker. Trainer only; wait-free but for pages.
 * Returns the slot (>= 0); -EAGAIN: no slot is FREE; -E2BIG: the request exceeds a range;
 * -EPROTO: the worker's ring was overwritten; -ENOSPC, -EINTR, ...: no pages for it. If no slot is
 * returned, nothing has happened.
 */
int64_t ledger_place(struct ledger *ledger, uint32_t worker, uint64_t ticket,
                     enum request_kind kind, const void *request, uint64_t bytes, uint32_t mode);

/* Push VERB_RESUME or VERB_QUIT. Trainer only; wait-free. False: the ring is full. */
bool ledger_tell(struct ledger *ledger, uint32_t worker, enum verb verb);

/*
 * Take the next news of any worker: trainer only, wait-free. False: none.
 * READY moves the slot PLACED -> READY and copies the answer out, once all checks held.
 */
bool ledger_receive(struct ledger *ledger, struct news *news);

/* True if ledger_receive would find something. Trainer only; wait-free. */
bool ledger_has_news(struct ledger *ledger);

/* The start of a READY slot; before this call only its answer may be read. Trainer only. */
uint8_t *ledger_open(struct ledger *ledger, uint32_t slot);

/* READY -> LEASED with a number of aliases; the caller makes views that each drop one. */
struct lease *ledger_lease(struct ledger *ledger, uint32_t slot, uint32_t aliases);

/* READY or PLACED -> FREE (or RETIRED). For PLACED the worker must have been reaped. */
void ledger_free(struct ledger *ledger, uint32_t slot);

/*
 * Free all slots that a reaped worker held, give back pages it may have added unseen, and empty its
 * rings for another worker: answers that were not received before are lost. Trainer only.
 */
void ledger_reclaim(struct ledger *ledger, uint32_t worker);

/* Make the segment ready for new workers; all that could write to it have been reaped. */
void ledger_restart(struct ledger *ledger);

/* Give back the pages of all slots that are FREE. Trainer only. */
void ledger_trim(struct ledger *ledger);

/* Tell all workers to leave as soon as they look (true), or take that back (false). */
void ledger_stop(struct ledger *ledger, bool stopping);

/* Free the slots whose last alias died since the last call. Trainer only; wait-free. */
void ledger_collect(struct ledger *ledger);

/* Raise a PLACED slot's grant and wake its worker. In any other state nothing happens. */
void ledger_grant(struct ledger *ledger, uint32_t slot, uint64_t grant_bytes);

/* Refuse a PLACED slot's want and wake its worker, which answers with an error. */
void ledger_refuse(struct ledger *ledger, uint32_t slot);

/* Orders in a worker's task ring that it has not taken. */
uint32_t ledger_untaken(struct ledger *ledger, uint32_t worker);

/* Answers in the ready rings that were not received. */
uint32_t ledger_unread(struct ledger *ledger);

/* The lowest ticket that is PLACED or READY; UINT64_MAX: none. Looks at every slot. */
uint64_t ledger_oldest(const struct ledger *ledger);

/* Mark all LEASED and FORKED slots as readable by a child just forked; returns how many. */
uint32_t ledger_mark_child(struct ledger *ledger, uint8_t *marks);

/* The child of those marks is gone: slots that waited for it are FREE. */
void ledger_unmark_child(struct ledger *ledger, const uint8_t *marks);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_LEDGER_H
#define SHMLOADER_LEDGER_H

#include "demand.h"
#include "driver.h"
#include "generation.h"
#include "lease.h"
#include "log.h"
#include "policy.h"
#include "segment.h"

/*
 * The trainer's side of the moves of a slot, in private memory. ledger.c opens with the key
 * invariant and what happens if a process dies.
 */

enum slot_state {
  SLOT_FREE = 0,
  SLOT_PLACED = 1,
  SLOT_READY = 2,
  SLOT_LEASED = 3,
  SLOT_RETIRED = 4,
  SLOT_SPARE = 5,   /* takes the place of a slot that is out of use */
  SLOT_FORKED = 6,  /* released here, but a forked child may still read it */
  SLOT_FENCED = 7,  /* released, but a device may still read it: see pinned.h */
  SLOT_STATES = 8,
};

struct ledger_entry {
  struct lease lease;
  uint32_t state;
  uint32_t worker;
  uint64_t ticket;
  uint64_t grant_bytes;
  uint64_t pages_bytes;      /* pages known to exist */
  _Atomic uint64_t locked_bytes; /* the first of them are page-locked for a device: they stay */
  uint64_t used_bytes;       /* of them by an answer, from READY on */
  uint64_t record_bytes;     /* of these a record that was placed: no part of the answer */
  uint64_t want_bytes;       /* the grant that its worker waits for; 0: none */
  uint64_t short_bytes;      /* how far it was granted, but finds no memory for; 0: none */
  alignas(CACHE_LINE) struct slot_answer answer; /* copied out when it was received */
  alignas(CACHE_LINE) struct slot_times times;   /* as above */
  uint64_t placed_ns;
  uint64_t leased_ns;   /* when the lease began */
  uint64_t released_ns; /* written by the lease's end */
  uint64_t logged;      /* the count of log records up to its own; 0: it has none */
  bool was_emptied;          /* written by the lease's end: its pages are gone */
  /* Forks of this process + 1 when the trainer said that it does not need its pages soon; or 0. */
  _Atomic uint32_t outlives;
  uint32_t children;         /* forked children that may read it */
  _Atomic uint32_t next_released; /* the slot below it on the stack: index + 1, or 0 */
  bool retire; /* on release, do not reuse */
  bool is_for_devices; /* true: a release fences it. The trainer sets it as it leases the slot. */
  uint64_t fence;      /* the number of that which it waits for; only if FENCED */
};

struct guard;

/* A worker's seat: seats.c says what for. */
struct seat {
  uint32_t placed; /* slots that are PLACED with it */
  bool is_open;    /* it may be chosen */
  bool is_taken;   /* it was seen that a process has sat down */
};

/* The fences of a ledger, of which each covers all slots that were released before it. */
struct fences {
  struct fence *ring;    /* geometry.ranges many, from the first slot that is locked on */
  uint32_t first, count; /* those that were recorded and are not known to be done */
  uint32_t uncovered;    /* FENCED slots that wait for the next one to be recorded */
  uint64_t next;         /* its number */
  uint32_t locked_slots; /* page-locked by pinned_lock */
};

#define RELEASED_CLOSED UINT32_MAX

/* The trainer's truth about one segment. Only its thread uses the fields, except for two. */
struct ledger {
  uint8_t *base;
  int fd;
  struct geometry geometry;
  /* One for the iterator's owner and one for each slot that is leased: unmaps at zero. */
  _Atomic uint32_t references;
  /*
   * Head of the stack of slots whose last alias died: index + 1, or 0. Any thread pushes, until the
   * trainer closes it for good: then it is RELEASED_CLOSED, and each thread cares for its own slot.
   */
  _Atomic uint32_t released;
  struct extent *extent;        /* in which the mapping is entered */
  struct ledger_entry *entries; /* geometry.ranges many */
  struct ring_writer *task_rings;
  struct ring_reader *ready_rings;
  uint32_t *free_slots; /* a stack: the slot freed last is the warmest */
  uint32_t free_count;
  uint32_t slots; /* how many shall be in use: FREE, PLACED, READY or LEASED */
  uint32_t spares; /* how many ranges came on top of those in use at first */
  uint32_t next_worker; /* where the next look for news starts */
  struct seat *seats;   /* geometry.workers many */
  uint32_t missing;     /* open seats without a process, when seats_freest was asked last */
  uint32_t counts[SLOT_STATES];
  uint32_t wanting; /* how many slots have a want_bytes */
  uint32_t shorts;  /* how many have short_bytes */
  uint64_t ring_bytes;      /* ceiling for committed_bytes */
  uint64_t share_bytes;     /* the grant that every slot gets without asking */
  uint64_t expect_bytes;    /* pages to make ahead in a slot; 0: what was learnt */
  uint64_t committed_bytes; /* pages that exist or may be made without asking */
  uint64_t generation;      /* of the process that made it: in a copy nothing shared is changed */
  struct platform_file file; /* what fd means */
  struct ledger *next_watched; /* children.c's list */
  uint64_t kept_bytes;      /* the part of it that waits for others: leased, forked, retired */
  uint64_t existing_bytes;  /* pages known to exist */
  uint64_t used_bytes;      /* the part of them that holds answers */
  uint64_t slack_bytes;     /* how many more than batches need may exist now; set from outside */
  struct demand demand;
  uint64_t last_ticket;     /* placed last */
  uint32_t comebacks;       /* leases that ended after about as many batches as there are slots */
  struct log log;           /* what viewers are shown */
  struct guard *guard;      /* NULL: uses of the slots are not watched; see guard.h */
  struct fences fences;     /* behind slots that devices read */
  struct looks looks;       /* at the trainer's doorbell */
};

/*
 * True in a forked child of the process that made the ledger. There each function that would change
 * something shared does nothing, or returns -EPERM. Any thread; wait-free.
 */
static inline bool ledger_is_copy(const struct ledger *ledger) {
  return ledger->generation != generation_now();
}

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
struct ledger *ledger_new(uint8_t *base, int fd, const struct geometry *geometry,
                          uint32_t slots, uint64_t ring_bytes);

/* Give up one reference; the mapping goes when the last lease has ended. Any thread. */
void ledger_unref(struct ledger *ledger);

/* What writes a record of so many bytes to where it will lie. */
struct record_writer {
  void (*write)(const void *record, uint8_t *to, uint64_t bytes);
  const void *record;
};

/*
 * Write a request into a FREE slot and push it to a worker. Trainer only; wait-free but for pages.
 * A request of REQUEST_RECORD is a struct record_writer.
 * Returns the slot (>= 0); -EAGAIN: no slot is FREE; -E2BIG: the request exceeds a range;
 * -EPROTO: the worker's ring was overwritten; -EPERM: this process is a copy of the trainer;
 * -EINVAL: there is no such worker or kind of request;
 * -ENOSPC, -EINTR, ...: no pages for it. If no slot is returned, nothing has happened.
 */
int64_t ledger_place(struct ledger *ledger, uint32_t worker, uint64_t ticket,
                     enum request_kind kind, const void *request, uint64_t bytes, uint32_t mode);

/*
 * Copy a batch of another process into a FREE slot, which is READY then, as if a worker had
 * answered: from where it is mapped, or with from == NULL out of a file. The answer says how long
 * it is; it is checked, but not that so much is mapped. Trainer only; wait-free but for pages.
 * Returns the slot (>= 0); -EAGAIN: no slot is FREE; -E2BIG: the batch exceeds a range; -EBADMSG:
 * the answer contradicts itself; -EIO: the file is shorter; -EPERM, -ENOSPC, -EINTR, ... as above.
 * If no slot is returned, nothing has happened.
 */
int64_t ledger_fill(struct ledger *ledger, uint64_t ticket, const struct slot_answer *answer,
                    const uint8_t *from, int fd, uint64_t offset);

/*
 * Push VERB_RESUME or VERB_QUIT. Trainer only; wait-free. False: there is no room, or no
 * such worker.
 */
bool ledger_tell(struct ledger *ledger, uint32_t worker, enum verb verb);

/*
 * Take the next news of any worker: trainer only, wait-free. False: none.
 * READY moves the slot PLACED -> READY and copies the answer out, once all checks held.
 */
bool ledger_receive(struct ledger *ledger, struct news *news);

/* True if ledger_receive would find something. Trainer only; wait-free. */
bool ledger_has_news(struct ledger *ledger);

/*
 * The moves below refuse a slot that does not exist or is in another state than they say: nothing
 * has happened then. So no mistake of a caller frees a slot twice. Trainer only.
 */

/* The start of a READY slot; before this call only its answer may be read. NULL: refused. */
uint8_t *ledger_open(struct ledger *ledger, uint32_t slot);

/* READY -> LEASED with aliases, at least 1; the caller's views drop one each. NULL: refused. */
struct lease *ledger_lease(struct ledger *ledger, uint32_t slot, uint32_t aliases);

/* FENCED -> FREE, or as LEASED: the fence of that number is done, and the copies before it. */
void ledger_end_fence(struct ledger *ledger, uint64_t number);

/* READY or PLACED -> FREE (or RETIRED); PLACED: its worker was reaped. False: refused. */
bool ledger_free(struct ledger *ledger, uint32_t slot);

/*
 * Free all slots that a reaped worker held, give back pages it may have added unseen, and empty its
 * rings for another worker: answers that were not received before are lost. Trainer only.
 */
void ledger_reclaim(struct ledger *ledger, uint32_t worker);

/* Make the segment ready for new workers; all that could write to it have been reaped. */
void ledger_restart(struct ledger *ledger);

/*
 * Give back pages of FREE slots: all, or without is_final what the next epoch's batches will not
 * need, if that is known. Trainer only, while no request is placed.
 */
void ledger_rest(struct ledger *ledger, bool is_final);

/*
 * The same for slots that are LEASED now, at the end of their lease, on whatever thread that is:
 * their batches outlive their epoch, and the trainer will not look before the next one. Without
 * is_final, and if it is known what the next epoch will need, their pages stay. Call it first: a
 * lease that ends in between is known to ledger_rest then. Trainer only.
 */
void ledger_rest_leased(struct ledger *ledger, bool is_final);

/*
 * Add a spare to the slots in use, if leases that were held as long as a spill came to an end since
 * the last time: then batches are dropped late, but they are dropped. False: nothing has happened.
 */
bool ledger_grow(struct ledger *ledger);

/*
 * The owner places nothing more: give back the pages of all slots that are FREE, and let each other
 * slot's pages go with its last alias, on the thread that drops it; except for those that a forked
 * child or a worker may still read, which stay until the segment goes. Trainer only.
 */
void ledger_close(struct ledger *ledger);

/* This process is about to be copied: the copy reads all that is leased now. Any thread. */
void ledger_note_fork(void);

/* Tell all workers to leave as soon as they look (true), or take that back (false). */
void ledger_stop(struct ledger *ledger, bool stopping);

/* Free the slots whose last alias died since the last call. Trainer only; wait-free. */
void ledger_collect(struct ledger *ledger);

/* Raise a PLACED slot's grant and wake its worker. False: refused, as is a smaller grant. */
bool ledger_grant(struct ledger *ledger, uint32_t slot, uint64_t grant_bytes);

/*
 * Refuse a PLACED slot's want, or the memory that it is short of, and wake its worker, which then
 * answers with an error. False: refused.
 */
bool ledger_refuse(struct ledger *ledger, uint32_t slot);

/* The lowest ticket that is PLACED or READY; UINT64_MAX: none. Looks at every slot. */
uint64_t ledger_oldest(const struct ledger *ledger);

/*
 * Mark the LEASED slots as readable by a child about to be forked, unless they are marked already;
 * returns how many are marked now for the first time. A FORKED slot has no alias here, so a child
 * forked now gets none.
 */
uint32_t ledger_mark_child(struct ledger *ledger, uint8_t *marks);

/* The child of those marks is gone: slots that waited for it are FREE. Clears the marks. */
void ledger_unmark_child(struct ledger *ledger, uint8_t *marks);

/* Retire the LEASED slots on release: nothing will tell when the child forked now is gone. */
void ledger_retire_leased(struct ledger *ledger);

#endif

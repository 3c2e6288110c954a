/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_TESTS_TRAFFIC_H
#define SHMLOADER_TESTS_TRAFFIC_H

/*
 * Batches that go round: a worker and a trainer that use the whole protocol and trust nothing. All
 * that a batch holds follows from its ticket, so every reader can check that it is the right one,
 * whole, and not overwritten. The same code runs in threads and in processes.
 */

#include "check.h"
#include "copy.h"
#include "budget.h"
#include "desk.h"
#include "ledger.h"

/* Tickets beyond this are not drawn, however long the test goes on. */
#define TICKETS_MAX UINT64_C(200000)

/* What happens at random in a worker, as one in so many orders; 0: never. */
struct habits {
  uint32_t error_in;
  uint32_t kept_in;
};

/* Be a worker until VERB_QUIT, or until stopping is raised. Every wait is bounded. */
void traffic_work(struct desk *desk, uint64_t stream, struct habits habits);

/* A ticket's life as the trainer knows it. */
enum ticket_state { TICKET_NEW = 0, TICKET_PLACED, TICKET_LOST, TICKET_DELIVERED };

struct trainer {
  struct ledger *ledger;
  uint64_t random;
  bool absent[8];      /* workers that get no orders */
  uint64_t next_ticket;
  uint64_t lost;       /* how many tickets are TICKET_LOST */
  uint64_t outstanding; /* how many are TICKET_PLACED */
  uint64_t delivered, errors, refused, kept;
  uint8_t *tickets;
  /* What becomes of a delivered batch: called with a lease of one alias. */
  void (*keep)(struct trainer *trainer, struct lease *lease);
  void *keeper;
};

struct trainer trainer_new(struct ledger *ledger, uint64_t stream);

/* Place as many tickets as there are slots, lost ones first; no new ones beyond a limit. */
void trainer_place(struct trainer *trainer, uint64_t tickets_limit);

/* Take all news. Returns true if there was any. */
bool trainer_receive(struct trainer *trainer);

/* Park until there is news, at most for a time. */
void trainer_wait(struct trainer *trainer, int64_t timeout_ns);

/* Mark the tickets placed with one worker, or with any, as lost: they are placed again. */
enum { ANYBODY = UINT32_MAX };
void trainer_lose(struct trainer *trainer, uint32_t worker);

/* Go on without new tickets until every one drawn is delivered. */
void trainer_finish(struct trainer *trainer);

/* Check that all tickets drawn were delivered, once; frees the record. */
void trainer_close(struct trainer *trainer);

/* Check all bytes of a leased batch against its ticket. Any thread that holds an alias. */
void check_batch(const struct ledger *ledger, const struct lease *lease);

#endif

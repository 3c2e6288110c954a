/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_SEATS_H
#define SHMLOADER_SEATS_H

#include "ledger.h"

/*
 * The workers' seats, as the trainer sees them; seats.c says what they are for.
 * All of it is the trainer's, and wait-free.
 */

/* How many requests a worker has that it has not answered. */
uint32_t seats_load(struct ledger *ledger, uint32_t worker);

/* True if a process has sat down in that seat since it was last emptied. */
bool seats_is_taken(struct ledger *ledger, uint32_t worker);

/* Say whether seats_freest may find that seat; all are open at first. */
void seats_open(struct ledger *ledger, uint32_t worker, bool is_open);

/*
 * The worker in an open seat that has the fewest requests to answer, fewer than most. -1: none, and
 * ledger_has_news is true as soon as one more has sat down.
 */
int64_t seats_freest(struct ledger *ledger, uint32_t most);

/* True if seats_freest might find a worker that had not sat down when it was asked last. */
bool seats_have_news(struct ledger *ledger);

/* Empty a seat: its worker was reaped. */
void seats_empty(struct ledger *ledger, uint32_t worker);

/* Say how many workers share what memory there is; at first all do for whom there is a seat. */
void seats_share(struct ledger *ledger, uint32_t workers);

#endif

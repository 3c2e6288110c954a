/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_CHILDREN_H
#define SHMLOADER_CHILDREN_H

#include "ledger.h"

/*
 * Forked children of the trainer, and the slots that they may read. children.c says how they are
 * known. One thread at a time may call these functions; with Python that is the holder of the GIL.
 */

/* Mark this ledger's leased slots at each fork from now on. */
void children_watch(struct ledger *ledger);

/* The ledger ends, or is used no more: its slots wait for no child. */
void children_forget(struct ledger *ledger);

/* A fork begins: mark what is leased in all watched ledgers. No fork may go unannounced. */
void children_before_fork(void);

/* That fork is over, in the parent, even if it failed. */
void children_after_fork(void);

/* How many forks have begun and are not over. */
extern uint32_t children_forking;

/* Mark what is leased in all watched ledgers. */
void children_mark(void);

/* A lease has begun: if that was between the two hooks of a fork, the child may read it too. */
static inline void children_leased(void) {
  if (children_forking > 0) children_mark();
}

/* This is the child: what its parent watched is none of its business. */
void children_in_child(void);

/* Free the slots whose children are gone. A few system calls, if any slot waits for a child. */
void children_look(void);

/* The same even if none waits, so that leases are known which no child reads any more. */
void children_look_now(void);

#endif

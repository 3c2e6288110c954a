/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_TESTS_FIXTURE_H
#define SHMLOADER_TESTS_FIXTURE_H

/*
 * A segment on a memfd with its ledger and its workers' desks, all in one process. The desks see
 * the segment through a mapping of their own, at another address than the ledger's, so a pointer
 * that got into shared memory would show. Rings start shortly before their positions wrap.
 */

#include "budget.h"
#include "desk.h"
#include "ledger.h"

enum { WORKERS_MAX = 4 };

struct fixture {
  struct geometry geometry;
  int fd; /* the desks' own descriptor; the ledger owns another */
  uint8_t *base;
  uint8_t *closed; /* what is before and behind the ledger's mapping cannot be read or written */
  struct ledger *ledger;
  struct desk desks[WORKERS_MAX];
};

/* Pages of this machine, in bytes. */
uint64_t pages(uint64_t count);

/* A segment whose ranges are 2 MiB each; ring_bytes in pages. */
struct fixture fixture_open(uint32_t workers, uint32_t slots, uint32_t ranges, uint64_t ring_pages);

/* Empty a worker's rings, and start them shortly before their positions wrap. */
void start_rings(struct ledger *ledger, uint32_t worker);

/* Guard it; nothing was placed yet. */
void fixture_guard(struct fixture *fixture);

/* Close it; the ledger must have no lease left. CLOSED: at the end of its block. */
void fixture_close(struct fixture *fixture);
#define CLOSED __attribute__((cleanup(fixture_close)))

/* Close the workers' half; the ledger goes on. */
void fixture_close_desks(struct fixture *fixture);

/* Sit all desks down anew, as after ledger_restart. */
void fixture_seat(struct fixture *fixture);

/* Check all that must hold of a ledger at any time, recounted from its entries. */
void check_ledger(const struct ledger *ledger);

/* Bytes of pages that exist in all slots. */
uint64_t resident(const struct fixture *fixture);

/* The pages that exist are those the ledger counts: holds whenever no worker may add any. */
void check_resident(const struct ledger *ledger);

/* Place a request of no particular content; the slot. */
uint32_t place(struct fixture *fixture, uint32_t worker, uint64_t ticket);

/* The worker takes its next order, which must be for this slot. */
void take(struct fixture *fixture, uint32_t worker, uint32_t slot);

/* A slot's order and answer as its worker sees them. */
struct slot_order *order_of(struct fixture *fixture, uint32_t slot);
struct slot_answer *answer_of(struct fixture *fixture, uint32_t slot);

/* The worker adds pages to a slot and writes an answer that is right in every field. */
void write_answer(struct fixture *fixture, uint32_t slot, enum answer_kind kind, uint64_t pages);

/* The worker publishes its answer. */
void commit(struct fixture *fixture, uint32_t worker, uint32_t slot);

/* The trainer's next message must be this one, and in order. */
void receive(struct fixture *fixture, uint32_t worker, enum verb verb, uint32_t slot);

/* The trainer's next message must be found broken, for this reason. */
void receive_broken(struct fixture *fixture, const char *reason);

/* commit, receive: the answer of the first worker arrives; deliver: it is written before. */
void arrive(struct fixture *fixture, uint32_t slot);
void deliver(struct fixture *fixture, uint32_t slot, enum answer_kind kind, uint64_t pages);

/* Drop a lease's last alias, and let the trainer see it. */
void drop_and_collect(struct fixture *fixture, struct lease *lease);

/* Let the kernel refuse the ledger to add pages and to take them back, and allow it again. */
void refuse_pages(struct fixture *fixture, bool refused);

/* place, take, deliver: a READY slot whose batch fills a number of pages. */
uint32_t ready_slot(struct fixture *fixture, uint64_t ticket, uint64_t pages);

/* The start of a slot in the trainer's mapping, and in the workers'. */
uint8_t *trainer_slot(struct fixture *fixture, uint32_t slot);
uint8_t *worker_slot(struct fixture *fixture, uint32_t slot);

/* What a guarded batch has, before a guard's canary. */
enum { GUARDED_PAYLOAD = 1000, GUARDED_LAYOUT = 100 };

/* place, take, write_guarded, commit: a guarded batch on its way; and received. */
uint32_t sent_slot(struct fixture *fixture, uint64_t ticket);
uint32_t come_slot(struct fixture *fixture, uint64_t ticket);

uint32_t state_of(const struct fixture *fixture, uint32_t slot);

#endif

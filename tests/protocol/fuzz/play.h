/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_TESTS_PLAY_H
#define SHMLOADER_TESTS_PLAY_H

/* The steps of an input. Each reads its numbers from the input. */

#include "arena.h"
#include "fixture.h"
#include "input.h"

enum { PLAY_FORKS = 3 };

struct play {
  struct arena arena;
  struct input input;
  uint64_t next_ticket;
  bool forked[PLAY_FORKS]; /* children that live */
  uint8_t marks[PLAY_FORKS][ARENA_RANGES];
  bool answers_forged; /* so the pages that a worker reports may be wrong */
  /* The pages that its worker made for the order in a slot, and that order's ticket + 1. */
  uint64_t made_bytes[ARENA_RANGES];
  uint64_t made_for[ARENA_RANGES];
};

/* play_trainer.c: each is one call of ledger.h, with the checks around it. */
void trainer_place(struct play *play);
void trainer_receive(struct play *play);
void trainer_drain(struct play *play);
void trainer_lease(struct play *play);
void trainer_take(struct play *play);
void trainer_drop(struct play *play);
void trainer_free(struct play *play);
void trainer_settle(struct play *play);
void trainer_room(struct play *play);
void trainer_reclaim(struct play *play);
void trainer_restart(struct play *play);
void trainer_trim(struct play *play);
void trainer_stop(struct play *play);
void trainer_tell(struct play *play);
void trainer_fork(struct play *play);
void trainer_unfork(struct play *play);
void trainer_look(struct play *play);

/* Open a segment, go through the steps of the input, and end; harm is done only if it may be. */
void play_through(struct play *play, bool may_harm);

/* End everything that is under way and check what is left. */
void end_play(struct play *play);

/* play_worker.c: what an honest worker does, */
void worker_take(struct play *play);
void worker_answer(struct play *play);
void worker_want(struct play *play);
/* an answer with one field that is not true, a cell of any value, all cells at once, */
void worker_forge(struct play *play);
void worker_push(struct play *play);
void worker_fill(struct play *play);
/* and any value over a word of the protocol, or over any byte. */
void worker_write(struct play *play);
void worker_scribble(struct play *play);

#endif

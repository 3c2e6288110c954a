/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The trainer's moves among workers that may write anything.
 *
 * An input is a segment's size, whether it is guarded, and then steps, a byte each and what the
 * step reads. Some steps are moves of the trainer, some those of an honest worker, and some write
 * nonsense into all that a worker can reach: its rings with their positions, its block, the control
 * block, the slot table, and the trainer's words too, which lie in the same pages. After every move
 * of the trainer the ledger is recounted and every answer that was accepted is measured; see
 * arena_after().
 *
 * Time is bounded as well: after one write the rings may keep the trainer busy for as many cells as
 * they have, and no longer. An input has a limited number of steps.
 */

#include "check.h"
#include "debug/guard.h"
#include "play.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

typedef void (*step)(struct play *play);

/* The table's order is that of the kept inputs. */
static const step steps[] = {
    trainer_place,   trainer_receive, trainer_drain,  trainer_lease,  trainer_take,
    trainer_drop,    trainer_free,    trainer_settle, trainer_room,   trainer_reclaim,
    trainer_restart, trainer_stop,    trainer_tell,   trainer_fork,   trainer_unfork,
    trainer_look,    worker_take,     worker_answer,  worker_answer,  worker_want,
    worker_forge,    worker_push,     worker_fill,    worker_write,   worker_scribble,
    trainer_trim,
};

static bool does_harm(step next) {
  return next == worker_forge || next == worker_push || next == worker_fill ||
         next == worker_write || next == worker_scribble;
}

enum { STEPS_MAX = 200, RING_PAGES_MAX = 24 };

static void open_play(struct play *play) {
  uint32_t workers = 1 + input_below(&play->input, ARENA_WORKERS);
  uint32_t slots = 1 + input_below(&play->input, ARENA_RANGES);
  uint32_t spares = input_below(&play->input, ARENA_RANGES + 1 - slots);
  uint64_t ring_pages = 1 + input_below(&play->input, RING_PAGES_MAX);
  arena_open(&play->arena, workers, slots, slots + spares, ring_pages);
}

void play_through(struct play *play, bool may_harm) {
  open_play(play);
  uint32_t how = input_byte(&play->input);
  bool orphans = how & 1;
  if (how & 2) CHECK_EQUAL(0, guard_start(play->arena.fixture.ledger));
  for (int i = 0; i < STEPS_MAX && !input_ends(&play->input); i++) {
    step next = steps[input_below(&play->input, LENGTH(steps))];
    if (may_harm || !does_harm(next)) next(play);
  }
  if (!orphans) end_play(play);
  arena_close(&play->arena, orphans);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  static struct play play;
  play = (struct play){.input = {.next = data, .left = bytes}};
  play_through(&play, true);
  return 0;
}

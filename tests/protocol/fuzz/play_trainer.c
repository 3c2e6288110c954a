/* SPDX-License-Identifier: BSD-3-Clause */
#include "check.h"
#include "play.h"
#include "seats.h"

static uint32_t any_slot(struct play *play) {
  return input_below(&play->input, play->arena.fixture.geometry.ranges);
}

static uint32_t any_worker(struct play *play) {
  return input_below(&play->input, play->arena.fixture.geometry.workers);
}

/* The cell that a worker takes last names the slot, and the budget is kept but for the request. */
static void check_placed(const struct arena *arena, uint32_t worker, uint32_t slot,
                         uint64_t request_bytes, uint64_t committed_before) {
  const struct ledger *ledger = arena->fixture.ledger;
  const struct ring_writer *tasks = &ledger->task_rings[worker];
  uint64_t most = committed_before > ledger->ring_bytes ? committed_before : ledger->ring_bytes;
  CHECK_EQUAL(SLOT_FREE, arena->entries[slot].state);
  CHECK_EQUAL(SLOT_PLACED, ledger->entries[slot].state);
  uint32_t cell = tasks->ring->cells[(tasks->write_pos - 1) & tasks->mask];
  CHECK_EQUAL(cell_make(VERB_PLACE, slot), cell);
  CHECK(ledger->committed_bytes <= most + round_up(request_bytes, pages(1)));
}

void trainer_place(struct play *play) {
  static const uint8_t request[1 << 14];
  struct arena *arena = &play->arena;
  struct ledger *ledger = arena->fixture.ledger;
  uint32_t worker = any_worker(play);
  uint32_t size = input_byte(&play->input);
  uint64_t beyond = arena->fixture.geometry.range_bytes + 1;
  uint64_t bytes = size == 255 ? beyond : 8 * size * (uint64_t)size / 32;
  uint64_t committed = ledger->committed_bytes;
  arena_before(arena);
  int64_t slot = ledger_place(ledger, worker, play->next_ticket, REQUEST_INDICES, request, bytes,
                              size & 1);
  arena_after(arena, false);
  if (slot < 0) {
    CHECK(slot == -EAGAIN || slot == -E2BIG || slot == -EPROTO, "errno %d", (int)-slot);
    return;
  }
  play->next_ticket++;
  check_placed(arena, worker, (uint32_t)slot, bytes, committed);
}

/* A want is recorded if it is more than was granted. */
static void check_want(const struct ledger_entry *before, const struct ledger_entry *after) {
  uint64_t want_bytes = after->answer.want_bytes;
  CHECK_EQUAL(after->ticket, after->answer.ticket);
  CHECK_EQUAL(want_bytes > before->grant_bytes ? want_bytes : before->want_bytes,
              after->want_bytes);
}

/* News moves the one slot that it names, which its worker held; or nothing moves. */
static void check_news(const struct arena *arena, const struct news *news) {
  CHECK(news->worker < arena->fixture.geometry.workers);
  CHECK((news->verb == 0) == (news->broken != NULL));
  for (uint32_t slot = 0; slot < arena->fixture.geometry.ranges; slot++) {
    const struct ledger_entry *before = &arena->entries[slot];
    const struct ledger_entry *after = &arena->fixture.ledger->entries[slot];
    bool named = news->slot == slot && news->verb != 0 && news->verb != VERB_RESUMED;
    CHECK(named || before->want_bytes == after->want_bytes);
    if (named) CHECK_EQUAL(news->worker, before->worker);
    if (named) CHECK_EQUAL(SLOT_PLACED, before->state);
    if (named && news->verb == VERB_WANT) check_want(before, after);
    uint32_t moved_to = named && news->verb == VERB_READY ? SLOT_READY : before->state;
    CHECK_EQUAL(moved_to, after->state);
  }
}

static bool receive_one(struct play *play, struct news *news) {
  arena_before(&play->arena);
  bool any = ledger_has_news(play->arena.fixture.ledger);
  CHECK_EQUAL(any, ledger_receive(play->arena.fixture.ledger, news));
  if (any) check_news(&play->arena, news);
  arena_after(&play->arena, false);
  return any;
}

void trainer_receive(struct play *play) {
  struct news news;
  (void)receive_one(play, &news);
}

/* As the transport does: until there is nothing more, or an error. */
void trainer_drain(struct play *play) {
  const struct geometry *geometry = &play->arena.fixture.geometry;
  uint32_t cells_left = geometry->workers * geometry->ring_capacity;
  struct news news;
  while (receive_one(play, &news) && news.verb != 0) {
    CHECK(cells_left-- > 0, "more news than cells");
  }
}

/* All of an answer can be read: a byte of each page, and the last. */
static void check_readable(const volatile uint8_t *start, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += pages(1)) (void)start[at];
  if (bytes > 0) (void)start[bytes - 1];
}

void trainer_lease(struct play *play) {
  uint32_t slot = any_slot(play);
  uint32_t aliases = 1 + input_below(&play->input, 3);
  if (state_of(&play->arena.fixture, slot) != SLOT_READY) return;
  arena_before(&play->arena);
  uint64_t end = answer_end(&play->arena.fixture.ledger->entries[slot].answer);
  check_readable(ledger_open(play->arena.fixture.ledger, slot), end);
  struct lease *lease = ledger_lease(play->arena.fixture.ledger, slot, aliases);
  CHECK_EQUAL(slot, lease->slot);
  play->arena.aliases[slot] = aliases;
  arena_after(&play->arena, false);
}

void trainer_take(struct play *play) {
  uint32_t slot = any_slot(play);
  if (play->arena.aliases[slot] == 0) return;
  lease_take(&play->arena.fixture.ledger->entries[slot].lease);
  play->arena.aliases[slot]++;
}

void trainer_drop(struct play *play) {
  uint32_t slot = any_slot(play);
  bool all = input_byte(&play->input) & 1;
  uint32_t aliases = play->arena.aliases[slot];
  if (aliases > 0) arena_drop(&play->arena, slot, all ? 0 : aliases - 1);
  arena_before(&play->arena);
  ledger_collect(play->arena.fixture.ledger);
  arena_after(&play->arena, false);
  if (play->arena.aliases[slot] == 0) CHECK(state_of(&play->arena.fixture, slot) != SLOT_LEASED);
}

void trainer_free(struct play *play) {
  uint32_t slot = any_slot(play);
  if (state_of(&play->arena.fixture, slot) != SLOT_READY) return;
  arena_before(&play->arena);
  ledger_free(play->arena.fixture.ledger, slot);
  arena_after(&play->arena, false);
}

static bool must_refuse(const struct ledger *ledger, uint64_t want_bytes) {
  return want_bytes > ledger->geometry.range_bytes || want_bytes > ledger->ring_bytes;
}

/* As the transport does: the oldest ticket gets its want, others as much as there is room for. */
static void settle(struct play *play, uint32_t slot) {
  struct ledger *ledger = play->arena.fixture.ledger;
  const struct ledger_entry *entry = &ledger->entries[slot];
  uint64_t want_bytes = entry->want_bytes;
  bool oldest = entry->ticket == ledger_oldest(ledger);
  if (must_refuse(ledger, want_bytes)) {
    ledger_refuse(ledger, slot);
    CHECK_EQUAL(0, entry->want_bytes);
  } else if (oldest || budget_room(ledger, slot, want_bytes) >= want_bytes) {
    ledger_grant(ledger, slot, want_bytes);
    CHECK_EQUAL(want_bytes, entry->grant_bytes);
    CHECK_EQUAL(0, entry->want_bytes);
  }
}

void trainer_settle(struct play *play) {
  arena_before(&play->arena);
  for (uint32_t slot = 0; slot < play->arena.fixture.geometry.ranges; slot++) {
    if (play->arena.fixture.ledger->entries[slot].want_bytes != 0) settle(play, slot);
  }
  arena_after(&play->arena, false);
}

/* Room is refused only when no FREE slot has pages left to give. */
void trainer_room(struct play *play) {
  struct ledger *ledger = play->arena.fixture.ledger;
  uint32_t slot = any_slot(play);
  uint64_t want_bytes = input_size(&play->input);
  if (state_of(&play->arena.fixture, slot) != SLOT_PLACED) return;
  arena_before(&play->arena);
  uint64_t room_bytes = budget_room(ledger, slot, want_bytes);
  arena_after(&play->arena, false);
  CHECK(room_bytes <= ledger->ring_bytes);
  if (want_bytes > ledger->geometry.range_bytes) want_bytes = ledger->geometry.range_bytes;
  for (uint32_t i = 0; i < ledger->free_count && room_bytes < want_bytes; i++) {
    CHECK_EQUAL(0, ledger->entries[ledger->free_slots[i]].pages_bytes);
  }
}

void trainer_reclaim(struct play *play) {
  uint32_t worker = any_worker(play);
  arena_before(&play->arena);
  ledger_reclaim(play->arena.fixture.ledger, worker);
  arena_after(&play->arena, true);
  arena_seat(&play->arena, worker);
}

void trainer_restart(struct play *play) {
  arena_before(&play->arena);
  ledger_restart(play->arena.fixture.ledger);
  arena_after(&play->arena, true);
  for (uint32_t worker = 0; worker < play->arena.fixture.geometry.workers; worker++) {
    arena_seat(&play->arena, worker);
  }
  CHECK_EQUAL(0, play->arena.fixture.ledger->counts[SLOT_PLACED]);
  CHECK_EQUAL(0, play->arena.fixture.ledger->counts[SLOT_READY]);
}

void trainer_trim(struct play *play) {
  struct ledger *ledger = play->arena.fixture.ledger;
  arena_before(&play->arena);
  ledger_rest_leased(ledger, true);
  ledger_rest(ledger, true);
  arena_after(&play->arena, false);
  for (uint32_t i = 0; i < ledger->free_count; i++) {
    CHECK_EQUAL(0, ledger->entries[ledger->free_slots[i]].pages_bytes);
  }
}

void trainer_stop(struct play *play) {
  arena_before(&play->arena);
  ledger_stop(play->arena.fixture.ledger, input_byte(&play->input) & 1);
  arena_after(&play->arena, false);
}

void trainer_tell(struct play *play) {
  uint32_t worker = any_worker(play);
  arena_before(&play->arena);
  (void)ledger_tell(play->arena.fixture.ledger, worker, VERB_RESUME);
  arena_after(&play->arena, false);
}

void trainer_fork(struct play *play) {
  uint32_t child = input_below(&play->input, PLAY_FORKS);
  if (play->forked[child]) return;
  arena_before(&play->arena);
  (void)ledger_mark_child(play->arena.fixture.ledger, play->marks[child]);
  arena_after(&play->arena, false);
  play->forked[child] = true;
}

static void unfork(struct play *play, uint32_t child) {
  if (!play->forked[child]) return;
  arena_before(&play->arena);
  ledger_unmark_child(play->arena.fixture.ledger, play->marks[child]);
  arena_after(&play->arena, false);
  play->forked[child] = false;
}

void trainer_unfork(struct play *play) { unfork(play, input_below(&play->input, PLAY_FORKS)); }

void trainer_look(struct play *play) {
  struct ledger *ledger = play->arena.fixture.ledger;
  struct doorbell *bell = &segment_control(ledger->base)->doorbell;
  arena_before(&play->arena);
  /* Only read: it counts a worker's messages, and any count is right. */
  (void)seats_load(ledger, any_worker(play) % ledger->geometry.workers);
  uint32_t armed = doorbell_arm(bell);
  if (!ledger_has_news(ledger)) (void)doorbell_park(bell, armed, 0);
  doorbell_disarm(bell);
  arena_after(&play->arena, false);
}

void end_play(struct play *play) {
  const struct ledger *ledger = play->arena.fixture.ledger;
  for (uint32_t slot = 0; slot < play->arena.fixture.geometry.ranges; slot++) {
    arena_drop(&play->arena, slot, 0);
  }
  trainer_restart(play);
  for (uint32_t child = 0; child < PLAY_FORKS; child++) unfork(play, child);
  CHECK_EQUAL(0, ledger->counts[SLOT_LEASED]);
  CHECK_EQUAL(0, ledger->counts[SLOT_FORKED]);
  /* Uncounted pages are gone with the workers that made them. */
  if (!play->answers_forged) CHECK(resident(&play->arena.fixture) <= ledger->committed_bytes);
}

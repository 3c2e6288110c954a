/* SPDX-License-Identifier: BSD-3-Clause */
#include "debug/canary.h"
#include "check.h"
#include "play.h"

/* A slot that a worker holds; what it knows of its order is read from the ledger, which is true. */
static const struct ledger_entry *any_held(struct play *play, uint32_t *slot) {
  *slot = input_below(&play->input, play->arena.fixture.geometry.ranges);
  const struct ledger_entry *entry = &play->arena.fixture.ledger->entries[*slot];
  return entry->state == SLOT_PLACED ? entry : NULL;
}

static void tell(struct play *play, uint32_t worker, uint32_t verb, uint32_t slot) {
  (void)desk_tell(&play->arena.fixture.desks[worker], (enum verb)verb, slot);
}

void worker_take(struct play *play) {
  uint32_t cell;
  uint32_t worker = input_below(&play->input, play->arena.fixture.geometry.workers);
  (void)desk_take(&play->arena.fixture.desks[worker], &cell);
}

/* Add pages for the order in a slot; how many bytes of it exist then. */
static uint64_t make_pages(struct play *play, uint32_t slot, const struct ledger_entry *entry,
                           uint32_t count) {
  const struct geometry *geometry = &play->arena.fixture.geometry;
  bool first = play->made_for[slot] != entry->ticket + 1;
  uint64_t made = first ? entry->pages_bytes : play->made_bytes[slot];
  uint64_t most = entry->grant_bytes / geometry->page_bytes * geometry->page_bytes;
  uint64_t bytes = pages(count) < most ? pages(count) : most;
  if (bytes < made) bytes = made;
  uint64_t offset = segment_slot_offset(geometry, slot) + made;
  int fd = play->arena.fixture.fd;
  CHECK_EQUAL(bytes - made, platform_reserve(fd, offset, bytes - made, pages(1)));
  play->made_for[slot] = entry->ticket + 1;
  play->made_bytes[slot] = bytes;
  return bytes;
}

/* Add pages and write an answer that is right in every field, with a canary behind the batch. */
static void write_true(struct play *play, uint32_t slot, const struct ledger_entry *entry) {
  uint32_t how = input_byte(&play->input);
  uint64_t bytes = make_pages(play, slot, entry, how % 8);
  struct slot_answer *answer = answer_of(&play->arena.fixture, slot);
  *answer = (struct slot_answer){.ticket = entry->ticket,
                                 .kind = (uint16_t)(ANSWER_BATCH + how / 8 % 4),
                                 .flags = how / 32 == 7 ? ANSWER_KEPT : 0,
                                 .snapshot_bytes = (uint32_t)bytes / 8,
                                 .payload_bytes = bytes / 2,
                                 .layout_offset = bytes / 2,
                                 .layout_bytes = bytes / 4,
                                 .pages_bytes = bytes};
  uint8_t *start = worker_slot(&play->arena.fixture, slot);
  uint64_t end = answer_end(answer);
  canary_write(start + end, canary_bytes(end, bytes), entry->ticket, slot);
}

void worker_answer(struct play *play) {
  uint32_t slot;
  const struct ledger_entry *entry = any_held(play, &slot);
  if (entry == NULL) return;
  write_true(play, slot, entry);
  tell(play, entry->worker, VERB_READY, slot);
}

void worker_want(struct play *play) {
  uint32_t slot;
  const struct ledger_entry *entry = any_held(play, &slot);
  uint64_t want_bytes = input_size(&play->input);
  if (input_byte(&play->input) & 1) want_bytes = pages(want_bytes % 64);
  if (entry == NULL) return;
  answer_of(&play->arena.fixture, slot)->ticket = entry->ticket;
  answer_of(&play->arena.fixture, slot)->want_bytes = want_bytes;
  tell(play, entry->worker, VERB_WANT, slot);
}

/* A number of any size, or one close to a bound that is checked. */
static uint64_t any_value(struct play *play, const struct ledger_entry *entry) {
  uint32_t how = input_below(&play->input, 4);
  uint64_t value = input_size(&play->input);
  if (how == 1) return entry->grant_bytes + value - 8;
  if (how == 2) return entry->grant_bytes / 2 + value - 8;
  if (how == 3) return pages(value);
  return value;
}

void worker_forge(struct play *play) {
  uint32_t slot;
  const struct ledger_entry *entry = any_held(play, &slot);
  if (entry == NULL) return;
  write_true(play, slot, entry);
  struct slot_answer *answer = answer_of(&play->arena.fixture, slot);
  uint64_t *words = (uint64_t *)answer;
  uint32_t count = sizeof *answer / sizeof *words;
  uint32_t word = input_below(&play->input, count + 1);
  uint64_t value = any_value(play, entry);
  if (word < count) words[word] = value;
  if (word == count) answer->snapshot_bytes = (uint32_t)value;
  play->answers_forged = true;
  tell(play, entry->worker, VERB_READY, slot);
}

void worker_push(struct play *play) {
  uint32_t worker = input_below(&play->input, play->arena.fixture.geometry.workers);
  uint32_t verb = input_below(&play->input, 16);
  uint32_t slot = (uint32_t)input_size(&play->input) & SLOT_MASK;
  tell(play, worker, verb, slot);
}

static _Atomic uint32_t *any_word(struct play *play) {
  struct arena *arena = &play->arena;
  const struct geometry *geometry = &arena->fixture.geometry;
  uint32_t worker = input_below(&play->input, geometry->workers);
  struct ring *tasks = segment_task_ring(arena->fixture.base, geometry, worker);
  struct ring *ready = segment_ready_ring(arena->fixture.base, geometry, worker);
  struct worker_block *block = segment_worker(arena->fixture.base, geometry, worker);
  struct doorbell *bell = &segment_control(arena->fixture.base)->doorbell;
  uint32_t cell = input_byte(&play->input) & (geometry->ring_capacity - 1);
  _Atomic uint32_t *words[] = {
      &ready->write_pos,     &tasks->read_pos,  &ready->read_pos,
      &tasks->write_pos,     &bell->rings,      &bell->parked,
      &block->doorbell.rings, &block->doorbell.parked,
      &ready->cells[cell],   &tasks->cells[cell],
  };
  return words[input_below(&play->input, LENGTH(words))];
}

/* A word of the protocol, moved by a little or set to anything. */
void worker_write(struct play *play) {
  _Atomic uint32_t *word = any_word(play);
  bool set = input_byte(&play->input) & 1;
  /* seq_cst by default: one thread does everything here, one after the other. */
  if (set) atomic_store(word, (uint32_t)input_number(&play->input, 4));
  if (!set) atomic_fetch_add(word, (uint32_t)input_byte(&play->input) - 128);
}

/* One value in every cell of a ready ring. */
void worker_fill(struct play *play) {
  const struct geometry *geometry = &play->arena.fixture.geometry;
  uint32_t worker = input_below(&play->input, geometry->workers);
  struct ring *ready = segment_ready_ring(play->arena.fixture.base, geometry, worker);
  uint32_t verb = VERB_READY + input_below(&play->input, 4);
  uint32_t slot = input_below(&play->input, geometry->ranges);
  for (uint32_t i = 0; i < geometry->ring_capacity; i++) {
    ready->cells[i] = cell_make((enum verb)verb, slot);
  }
}

/* Any bytes anywhere before the slots. */
void worker_scribble(struct play *play) {
  uint64_t offset = input_number(&play->input, 2) % play->arena.fixture.geometry.log_offset;
  uint8_t *at = play->arena.fixture.base + offset;
  uint32_t count = 1 + input_below(&play->input, 8);
  for (uint32_t i = 0; i < count && offset + i < play->arena.fixture.geometry.log_offset; i++) {
    at[i] = (uint8_t)input_byte(&play->input);
  }
  play->answers_forged = true;
}

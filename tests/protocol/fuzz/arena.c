/* SPDX-License-Identifier: BSD-3-Clause */
#include "arena.h"

#include "check.h"

enum owner { OWNER_WORKER = 0, OWNER_TRAINER = 1, OWNER_RESET = 2 };

static void own(struct arena *arena, const volatile void *start, size_t bytes, enum owner owner) {
  size_t offset = (size_t)((const volatile uint8_t *)start - arena->fixture.base);
  CHECK(offset + bytes <= arena->fixture.geometry.table_end);
  memset(arena->owned + offset, owner, bytes);
}

static void own_ring(struct arena *arena, struct ring *ring, bool trainer_writes) {
  enum owner reset = OWNER_RESET, mine = OWNER_TRAINER;
  own(arena, &ring->write_pos, sizeof ring->write_pos, trainer_writes ? mine : reset);
  own(arena, &ring->read_pos, sizeof ring->read_pos, trainer_writes ? reset : mine);
  size_t cells_bytes = arena->fixture.geometry.ring_capacity * sizeof *ring->cells;
  if (trainer_writes) own(arena, ring->cells, cells_bytes, mine);
}

/* The writer of each word, repeated from segment.h. */
static void own_all(struct arena *arena) {
  const struct geometry *geometry = &arena->fixture.geometry;
  memset(arena->owned, OWNER_WORKER, sizeof arena->owned);
  struct control_block *control = segment_control(arena->fixture.base);
  own(arena, &control->nameplate, sizeof control->nameplate, OWNER_TRAINER);
  own(arena, &control->trainer, sizeof control->trainer, OWNER_TRAINER);
  own(arena, &control->doorbell.parked, sizeof control->doorbell.parked, OWNER_TRAINER);
  own(arena, &control->stopping, sizeof control->stopping, OWNER_TRAINER);
  own(arena, &control->may_look, sizeof control->may_look, OWNER_TRAINER);
  own(arena, &control->sharers, sizeof control->sharers, OWNER_TRAINER);
  for (uint32_t worker = 0; worker < geometry->workers; worker++) {
    struct worker_block *block = segment_worker(arena->fixture.base, geometry, worker);
    own(arena, &block->doorbell.rings, sizeof block->doorbell.rings, OWNER_TRAINER);
    own(arena, &block->view.pid, sizeof block->view.pid, OWNER_RESET);
    own_ring(arena, segment_task_ring(arena->fixture.base, geometry, worker), true);
    own_ring(arena, segment_ready_ring(arena->fixture.base, geometry, worker), false);
  }
  for (uint32_t slot = 0; slot < geometry->ranges; slot++) {
    struct slot_header *header = segment_header(arena->fixture.base, geometry, slot);
    own(arena, &header->order, sizeof header->order, OWNER_TRAINER);
  }
}

void arena_open(struct arena *arena, uint32_t workers, uint32_t slots, uint32_t ranges,
                uint64_t ring_pages) {
  *arena = (struct arena){.fixture = fixture_open(workers, slots, ranges, ring_pages)};
  CHECK(arena->fixture.geometry.log_offset <= ARENA_TABLE_BYTES);
  own_all(arena);
}

void arena_seat(struct arena *arena, uint32_t worker) {
  struct fixture *fixture = &arena->fixture;
  desk_init(&fixture->desks[worker], fixture->base, fixture->fd, &fixture->geometry, worker);
}

void arena_drop(struct arena *arena, uint32_t slot, uint32_t aliases_left) {
  /* Not through the ledger after the last one: it may be gone with it. */
  while (arena->aliases[slot] > aliases_left) {
    arena->aliases[slot]--;
    lease_drop(&arena->fixture.ledger->entries[slot].lease);
  }
}

void arena_close(struct arena *arena, bool orphans) {
  struct ledger *ledger = arena->fixture.ledger;
  if (orphans) ledger_unref(ledger);
  if (!orphans) CHECK_EQUAL(1, atomic_load(&ledger->references));
  for (uint32_t slot = 0; slot < arena->fixture.geometry.ranges; slot++) arena_drop(arena, slot, 0);
  if (!orphans) ledger_unref(ledger);
  fixture_close_desks(&arena->fixture);
}

void arena_before(struct arena *arena) {
  memcpy(arena->before, arena->fixture.base, arena->fixture.geometry.log_offset);
  memcpy(arena->entries, arena->fixture.ledger->entries,
         arena->fixture.geometry.ranges * sizeof *arena->entries);
}

static void check_writes(const struct arena *arena, bool rings_opened) {
  enum owner most = rings_opened ? OWNER_RESET : OWNER_TRAINER;
  for (size_t line = 0; line < arena->fixture.geometry.log_offset; line += CACHE_LINE) {
    const uint8_t *before = arena->before + line, *after = arena->fixture.base + line;
    if (memcmp(before, after, CACHE_LINE) == 0) continue;
    for (size_t i = 0; i < CACHE_LINE; i++) {
      uint8_t owner = arena->owned[line + i];
      CHECK(before[i] == after[i] || (owner != OWNER_WORKER && owner <= most),
            "the trainer wrote at offset %zu", line + i);
    }
  }
}

static void check_kept(const struct ledger *ledger) {
  uint64_t bytes = 0;
  for (uint32_t slot = 0; slot < ledger->geometry.ranges; slot++) {
    const struct ledger_entry *entry = &ledger->entries[slot];
    bool waits = entry->state == SLOT_LEASED || entry->state == SLOT_FORKED;
    if (waits || entry->state == SLOT_RETIRED) bytes += entry->pages_bytes;
  }
  CHECK_EQUAL(bytes, ledger->kept_bytes);
}

/* An answer that was accepted lies inside the slot's pages, and those inside what was granted. */
static void check_answer(const struct arena *arena, const struct ledger_entry *entry) {
  const struct slot_answer *answer = &entry->answer;
  CHECK_EQUAL(entry->ticket, answer->ticket);
  CHECK(answer->kind >= ANSWER_BATCH && answer->kind <= ANSWER_NOTHING);
  CHECK(answer->pages_bytes <= entry->grant_bytes);
  CHECK(answer->pages_bytes <= entry->pages_bytes);
  CHECK(answer->payload_bytes <= answer->pages_bytes);
  CHECK(answer->layout_offset <= answer->pages_bytes);
  CHECK(answer->layout_bytes <= answer->pages_bytes - answer->layout_offset);
  uint64_t behind = answer->pages_bytes - answer->layout_offset - answer->layout_bytes;
  CHECK(answer->snapshot_bytes <= behind);
  CHECK(entry->pages_bytes <= arena->fixture.geometry.range_bytes);
}

void arena_after(const struct arena *arena, bool rings_opened) {
  check_ledger(arena->fixture.ledger);
  check_kept(arena->fixture.ledger);
  check_writes(arena, rings_opened);
  for (uint32_t slot = 0; slot < arena->fixture.geometry.ranges; slot++) {
    const struct ledger_entry *entry = &arena->fixture.ledger->entries[slot];
    CHECK_EQUAL(0, entry->pages_bytes % arena->fixture.geometry.page_bytes);
    bool answered = entry->state == SLOT_READY || entry->state == SLOT_LEASED;
    if (answered) check_answer(arena, entry);
  }
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "fixture.h"

#include "debug/canary.h"
#include "check.h"
#include "debug/guard.h"

#include <sys/stat.h>

static const uint32_t start_pos = UINT32_MAX - 2;

#define CLOSED_BYTES (UINT64_C(1) << 20)

uint64_t pages(uint64_t count) { return count * (uint64_t)sysconf(_SC_PAGESIZE); }

static uint8_t *map(void *at, int fd, uint64_t bytes) {
  int flags = MAP_SHARED | (at != NULL ? MAP_FIXED : 0);
  void *base = mmap(at, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  CHECK(base != MAP_FAILED);
  return base;
}

/* Addresses for so many bytes, between two stretches that stay closed. */
static uint8_t *closed_addresses(uint64_t bytes) {
  int nothing = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void *start = mmap(NULL, bytes + 2 * CLOSED_BYTES, PROT_NONE, nothing, -1, 0);
  CHECK(start != MAP_FAILED);
  return start;
}

/* All that is not a slot exists from the start, so that the resident pages are known. */
static uint64_t table_bytes(const struct geometry *geometry) {
  return round_up(geometry->table_end, geometry->page_bytes);
}

void start_rings(struct ledger *ledger, uint32_t worker) {
  const struct geometry *geometry = &ledger->geometry;
  struct ring *tasks = segment_task_ring(ledger->base, geometry, worker);
  struct ring *ready = segment_ready_ring(ledger->base, geometry, worker);
  ring_init(tasks, start_pos);
  ring_init(ready, start_pos);
  ledger->task_rings[worker] = ring_open_writer(tasks, geometry->ring_capacity);
  ledger->ready_rings[worker] = ring_open_reader(ready, geometry->ring_capacity);
}

struct fixture fixture_open(uint32_t workers, uint32_t slots, uint32_t ranges,
                            uint64_t ring_pages) {
  struct fixture fixture;
  CHECK(workers <= WORKERS_MAX);
  CHECK_EQUAL(0, geometry_init(&fixture.geometry, workers, ranges, 1));
  fixture.fd = memfd_create("fixture", MFD_CLOEXEC);
  CHECK(fixture.fd >= 0);
  CHECK_EQUAL(0, ftruncate(fixture.fd, (off_t)fixture.geometry.total_bytes));
  uint64_t table = table_bytes(&fixture.geometry);
  CHECK_EQUAL(table, platform_reserve(fixture.fd, 0, table, pages(1)));
  fixture.closed = closed_addresses(fixture.geometry.total_bytes);
  uint8_t *base = map(fixture.closed + CLOSED_BYTES, fixture.fd, fixture.geometry.total_bytes);
  fixture.ledger = ledger_new(base, dup(fixture.fd), &fixture.geometry, slots, pages(ring_pages));
  CHECK(fixture.ledger != NULL);
  for (uint32_t worker = 0; worker < workers; worker++) start_rings(fixture.ledger, worker);
  fixture.base = map(NULL, fixture.fd, fixture.geometry.total_bytes);
  fixture_seat(&fixture);
  return fixture;
}

void fixture_guard(struct fixture *fixture) {
  CHECK_EQUAL(0, guard_start(fixture->ledger));
}

void fixture_seat(struct fixture *fixture) {
  for (uint32_t worker = 0; worker < fixture->geometry.workers; worker++) {
    desk_init(&fixture->desks[worker], fixture->base, fixture->fd, &fixture->geometry, worker);
  }
}

void fixture_close_desks(struct fixture *fixture) {
  uint64_t bytes = fixture->geometry.total_bytes;
  CHECK_EQUAL(0, munmap(fixture->base, bytes));
  CHECK_EQUAL(0, munmap(fixture->closed, CLOSED_BYTES));
  CHECK_EQUAL(0, munmap(fixture->closed + CLOSED_BYTES + bytes, CLOSED_BYTES));
  CHECK_EQUAL(0, close(fixture->fd));
}

void fixture_close(struct fixture *fixture) {
  check_ledger(fixture->ledger);
  CHECK_EQUAL(1, atomic_load(&fixture->ledger->references));
  ledger_unref(fixture->ledger);
  fixture_close_desks(fixture);
}

static uint64_t committed(const struct ledger_entry *entry) {
  return entry->state == SLOT_PLACED ? entry->grant_bytes : entry->pages_bytes;
}

static void check_free_slots(const struct ledger *ledger) {
  for (uint32_t i = 0; i < ledger->free_count; i++) {
    CHECK(ledger->free_slots[i] < ledger->geometry.ranges);
    CHECK_EQUAL(SLOT_FREE, ledger->entries[ledger->free_slots[i]].state);
    for (uint32_t j = 0; j < i; j++) CHECK(ledger->free_slots[i] != ledger->free_slots[j]);
  }
}

void check_ledger(const struct ledger *ledger) {
  uint32_t counts[SLOT_STATES] = {0};
  uint32_t wanting = 0, shorts = 0;
  uint64_t bytes = 0;
  for (uint32_t slot = 0; slot < ledger->geometry.ranges; slot++) {
    const struct ledger_entry *entry = &ledger->entries[slot];
    CHECK(entry->state < SLOT_STATES);
    CHECK(entry->pages_bytes <= ledger->geometry.range_bytes);
    CHECK(entry->state != SLOT_PLACED || entry->pages_bytes <= entry->grant_bytes);
    counts[entry->state]++;
    bytes += committed(entry);
    wanting += entry->want_bytes != 0;
    CHECK(entry->want_bytes == 0 || entry->state == SLOT_PLACED);
    shorts += entry->short_bytes != 0;
    CHECK(entry->short_bytes == 0 || entry->state == SLOT_PLACED);
  }
  for (uint32_t state = 0; state < SLOT_STATES; state++) {
    CHECK(counts[state] == ledger->counts[state], "state %u: %u slots, counted as %u", state,
          counts[state], ledger->counts[state]);
  }
  CHECK_EQUAL(bytes, ledger->committed_bytes);
  CHECK_EQUAL(wanting, ledger->wanting);
  CHECK_EQUAL(shorts, ledger->shorts);
  CHECK_EQUAL(counts[SLOT_FREE], ledger->free_count);
  check_free_slots(ledger);
}

uint64_t resident(const struct fixture *fixture) {
  struct stat file;
  CHECK_EQUAL(0, fstat(fixture->fd, &file));
  return (uint64_t)file.st_blocks * 512 - table_bytes(&fixture->geometry);
}

void check_resident(const struct ledger *ledger) {
  struct stat file;
  CHECK_EQUAL(0, fstat(ledger->fd, &file));
  CHECK_EQUAL(table_bytes(&ledger->geometry) + ledger->committed_bytes,
              (uint64_t)file.st_blocks * 512);
}

uint32_t place(struct fixture *fixture, uint32_t worker, uint64_t ticket) {
  const int64_t indices[] = {1, -2, (int64_t)ticket};
  int64_t slot = ledger_place(fixture->ledger, worker, ticket, REQUEST_INDICES, indices,
                              sizeof indices, 0);
  CHECK(slot >= 0, "errno %d", (int)-slot);
  check_ledger(fixture->ledger);
  return (uint32_t)slot;
}

void take(struct fixture *fixture, uint32_t worker, uint32_t slot) {
  uint32_t cell;
  CHECK(desk_take(&fixture->desks[worker], &cell));
  CHECK_EQUAL(VERB_PLACE, cell_verb(cell));
  CHECK_EQUAL(slot, cell_slot(cell));
  struct slot_order order;
  const char *fault = desk_accept(&fixture->desks[worker], slot, &order);
  CHECK(fault == NULL, "%s", fault);
}

struct slot_order *order_of(struct fixture *fixture, uint32_t slot) {
  return &segment_header(fixture->base, &fixture->geometry, slot)->order;
}

struct slot_answer *answer_of(struct fixture *fixture, uint32_t slot) {
  return &segment_header(fixture->base, &fixture->geometry, slot)->answer;
}

void write_answer(struct fixture *fixture, uint32_t slot, enum answer_kind kind,
                  uint64_t page_count) {
  const struct slot_order *order = order_of(fixture, slot);
  uint64_t bytes = pages(page_count);
  if (bytes < order->pages_bytes) bytes = order->pages_bytes;
  uint64_t offset = segment_slot_offset(&fixture->geometry, slot);
  uint64_t more = bytes - order->pages_bytes;
  CHECK_EQUAL(more, platform_reserve(fixture->fd, offset + order->pages_bytes, more, pages(1)));
  memset(fixture->base + offset, (int)order->ticket, bytes);
  *answer_of(fixture, slot) = (struct slot_answer){.ticket = order->ticket,
                                                   .kind = kind,
                                                   .payload_bytes = bytes / 2,
                                                   .layout_offset = bytes / 2,
                                                   .layout_bytes = bytes - bytes / 2,
                                                   .pages_bytes = bytes};
}

void commit(struct fixture *fixture, uint32_t worker, uint32_t slot) {
  CHECK(desk_tell(&fixture->desks[worker], VERB_READY, slot));
}

void receive(struct fixture *fixture, uint32_t worker, enum verb verb, uint32_t slot) {
  struct news news;
  CHECK(ledger_receive(fixture->ledger, &news));
  CHECK(news.broken == NULL, "%s", news.broken);
  CHECK_EQUAL(worker, news.worker);
  CHECK_EQUAL(verb, news.verb);
  CHECK_EQUAL(slot, news.slot);
  check_ledger(fixture->ledger);
}

void receive_broken(struct fixture *fixture, const char *reason) {
  struct news news;
  CHECK(ledger_receive(fixture->ledger, &news));
  CHECK_EQUAL(0, news.verb);
  CHECK(news.broken != NULL && strcmp(news.broken, reason) == 0, "expected \"%s\", is \"%s\"",
        reason, news.broken != NULL ? news.broken : "none");
  check_ledger(fixture->ledger);
}

void arrive(struct fixture *fixture, uint32_t slot) {
  commit(fixture, 0, slot);
  receive(fixture, 0, VERB_READY, slot);
}

void deliver(struct fixture *fixture, uint32_t slot, enum answer_kind kind, uint64_t page_count) {
  write_answer(fixture, slot, kind, page_count);
  arrive(fixture, slot);
}

void drop_and_collect(struct fixture *fixture, struct lease *lease) {
  lease_drop(lease);
  ledger_collect(fixture->ledger);
}

/* A descriptor that may only read stands for a kernel that refuses. */
void refuse_pages(struct fixture *fixture, bool refused) {
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fixture->fd);
  int fd = open(path, (refused ? O_RDONLY : O_RDWR) | O_CLOEXEC);
  CHECK(fd >= 0 && dup2(fd, fixture->ledger->fd) >= 0);
  close(fd);
}

uint32_t ready_slot(struct fixture *fixture, uint64_t ticket, uint64_t page_count) {
  uint32_t slot = place(fixture, 0, ticket);
  take(fixture, 0, slot);
  deliver(fixture, slot, ANSWER_BATCH, page_count);
  return slot;
}

uint8_t *trainer_slot(struct fixture *fixture, uint32_t slot) {
  return fixture->ledger->base + segment_slot_offset(&fixture->geometry, slot);
}

uint8_t *worker_slot(struct fixture *fixture, uint32_t slot) {
  return fixture->base + segment_slot_offset(&fixture->geometry, slot);
}

static void write_guarded(struct fixture *fixture, uint32_t slot) {
  write_answer(fixture, slot, ANSWER_BATCH, 1);
  struct slot_answer *answer = answer_of(fixture, slot);
  uint8_t *start = worker_slot(fixture, slot);
  answer->payload_bytes = answer->layout_offset = GUARDED_PAYLOAD;
  answer->layout_bytes = GUARDED_LAYOUT;
  canary_write(start + answer_end(answer), CANARY_BYTES, answer->ticket, slot);
}

uint32_t sent_slot(struct fixture *fixture, uint64_t ticket) {
  uint32_t slot = place(fixture, 0, ticket);
  take(fixture, 0, slot);
  write_guarded(fixture, slot);
  commit(fixture, 0, slot);
  return slot;
}

uint32_t come_slot(struct fixture *fixture, uint64_t ticket) {
  uint32_t slot = sent_slot(fixture, ticket);
  receive(fixture, 0, VERB_READY, slot);
  return slot;
}

uint32_t state_of(const struct fixture *fixture, uint32_t slot) {
  return fixture->ledger->entries[slot].state;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "traffic.h"

#include <stdlib.h>

#include "debug/canary.h"

#define SLICE_NS INT64_C(50000000)
#define MISSED_NS INT64_C(20000000000)

enum { CANARY_WORDS = 4, REQUEST_MOST = 700 };

static uint64_t mix(uint64_t number) {
  number = (number ^ number >> 31) * UINT64_C(0x9e3779b97f4a7c15);
  return (number ^ number >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
}

/* How long a ticket's request and batch are: mostly small, now and then far above a share. */
static size_t request_length(uint64_t ticket) { return 1 + mix(ticket) % REQUEST_MOST; }

static uint64_t payload_words(uint64_t ticket) {
  uint64_t random = mix(ticket + 1000);
  return random % 16 == 0 ? random / 16 % 20000 : random / 16 % 600;
}

/* A batch is its words, then their checksum and the ticket as its layout, then canaries. */
static uint64_t batch_words(uint64_t ticket) { return payload_words(ticket) + 2 + CANARY_WORDS; }

static void write_words(uint64_t *words, uint64_t ticket) {
  uint64_t count = payload_words(ticket), checksum = 0;
  for (uint64_t i = 0; i < count; i++) checksum += words[i] = mix(ticket) + i;
  words[count] = checksum;
  words[count + 1] = ticket;
  for (int i = 0; i < CANARY_WORDS; i++) words[count + 2 + i] = ~ticket;
}

static void check_words(const uint64_t *words, uint64_t ticket) {
  uint64_t count = payload_words(ticket), checksum = 0;
  for (uint64_t i = 0; i < count; i++) {
    CHECK(words[i] == mix(ticket) + i, "word %" PRIu64 " of ticket %" PRIu64, i, ticket);
    checksum += words[i];
  }
  CHECK_EQUAL(checksum, words[count]);
  CHECK_EQUAL(ticket, words[count + 1]);
  for (int i = 0; i < CANARY_WORDS; i++) CHECK_EQUAL(~ticket, words[count + 2 + i]);
}

/* The worker. */

/* An order in hand. */
struct hand {
  struct desk *desk;
  uint32_t slot;
  struct slot_order *order;
  struct slot_answer *answer;
  uint8_t *start;
};

static void check_request(const struct hand *hand) {
  uint64_t ticket = hand->order->ticket;
  const int64_t *request = (const int64_t *)hand->start;
  CHECK_EQUAL(REQUEST_INDICES, hand->order->request_kind);
  CHECK_EQUAL(8 * request_length(ticket), hand->order->request_bytes);
  for (size_t i = 0; i < request_length(ticket); i++) CHECK_EQUAL(mix(ticket + i), request[i]);
}

static bool settled(const struct hand *hand, uint64_t bytes) {
  return order_grant(hand->order) >= bytes || order_refused(hand->order) == bytes ||
         desk_stopping(hand->desk);
}

/*
 * Ask for a larger grant, and wait until it is settled. While it is not, the trainer may read the
 * want at any time, so a worker that is told to stop leaves without writing an answer over it.
 */
static void ask(const struct hand *hand, uint64_t bytes) {
  struct doorbell *bell = &hand->desk->block->doorbell;
  int64_t deadline_ns = platform_now_ns() + MISSED_NS;
  hand->answer->ticket = hand->order->ticket;
  hand->answer->want_bytes = bytes;
  CHECK(desk_tell(hand->desk, VERB_WANT, hand->slot));
  while (!settled(hand, bytes)) {
    uint32_t armed = doorbell_arm(bell);
    if (!settled(hand, bytes)) doorbell_park(bell, armed, SLICE_NS);
    doorbell_disarm(bell);
    CHECK(platform_now_ns() < deadline_ns, "a want was neither granted nor refused");
  }
}

/* Make the slot's first bytes exist; the pages there are now, 0 if they were not granted. */
static uint64_t add_pages(const struct hand *hand, uint64_t bytes) {
  uint64_t before = hand->order->pages_bytes;
  uint64_t after = round_up(bytes, hand->desk->geometry.page_bytes);
  if (after <= before) return before;
  if (after > order_grant(hand->order)) ask(hand, after);
  if (after > order_grant(hand->order)) return 0;
  uint64_t offset = segment_slot_offset(&hand->desk->geometry, hand->slot);
  uint64_t page_bytes = hand->desk->geometry.page_bytes;
  CHECK_EQUAL(after - before,
              platform_reserve(hand->desk->fd, offset + before, after - before, page_bytes));
  return after;
}

static void write_batch(const struct hand *hand, uint64_t *random) {
  uint64_t ticket = hand->order->ticket;
  uint64_t bytes = 8 * batch_words(ticket);
  uint64_t *words = malloc(bytes);
  CHECK(words != NULL);
  write_words(words, ticket);
  /* Half of them streamed, whatever their length. */
  uint64_t batch_bytes = random_below(random, 2) ? COPY_STREAM_FROM_BYTES : 0;
  copy_bytes(hand->start, words, bytes, batch_bytes);
  free(words);
}

static struct slot_answer answer_of(const struct hand *hand, uint64_t pages_bytes, bool is_error) {
  uint64_t ticket = hand->order->ticket;
  struct slot_answer answer = {.ticket = ticket, .pages_bytes = pages_bytes};
  answer.kind = is_error ? ANSWER_ERROR : ANSWER_BATCH;
  answer.payload_bytes = is_error ? 0 : 8 * payload_words(ticket);
  answer.layout_offset = answer.payload_bytes;
  /* A guard's canary stands behind ours. */
  bool guarded = hand->order->mode & ORDER_GUARDED;
  answer.layout_bytes = is_error ? 0 : 16 + (guarded ? 8 * CANARY_WORDS : 0);
  return answer;
}

/* The canary that the trainer's guard expects behind a batch. */
static void leave_canary(const struct hand *hand) {
  uint64_t end = answer_end(hand->answer);
  uint64_t bytes = canary_bytes(end, hand->answer->pages_bytes);
  if (!(hand->order->mode & ORDER_GUARDED)) return;
  canary_write(hand->start + end, bytes, hand->order->ticket, hand->slot);
}

static bool one_in(uint64_t *random, uint32_t chance) {
  return chance != 0 && random_below(random, chance) == 0;
}

static bool was_refused(const struct hand *hand) { return order_refused(hand->order) != 0; }

static void answer_order(struct desk *desk, uint32_t slot, uint64_t *random, struct habits habits) {
  struct slot_header *header = segment_header(desk->base, &desk->geometry, slot);
  struct hand hand = {desk, slot, &header->order, &header->answer,
                      desk->base + segment_slot_offset(&desk->geometry, slot)};
  struct slot_order accepted;
  /* This trainer places a ticket again with any worker, and after an error too. */
  desk->next_ticket = 0;
  const char *fault = desk_accept(desk, slot, &accepted);
  CHECK(fault == NULL, "%s", fault);
  check_request(&hand);
  uint64_t pages_bytes = add_pages(&hand, 8 * batch_words(hand.order->ticket));
  if (pages_bytes == 0 && !was_refused(&hand)) return;
  bool is_error = pages_bytes == 0 || one_in(random, habits.error_in);
  if (!is_error) write_batch(&hand, random);
  *hand.answer = answer_of(&hand, pages_bytes ? pages_bytes : hand.order->pages_bytes, is_error);
  bool may_keep = !(hand.order->mode & ORDER_COPY_IN);
  if (may_keep && one_in(random, habits.kept_in)) hand.answer->flags |= ANSWER_KEPT;
  leave_canary(&hand);
  CHECK(desk_tell(desk, VERB_READY, slot));
}

static bool next_order(struct desk *desk, uint32_t *cell) {
  struct doorbell *bell = &desk->block->doorbell;
  while (!desk_take(desk, cell)) {
    if (desk_stopping(desk)) return false;
    uint32_t armed = doorbell_arm(bell);
    if (!ring_has_value(&desk->task_ring) && !desk_stopping(desk)) {
      doorbell_park(bell, armed, SLICE_NS);
    }
    doorbell_disarm(bell);
  }
  return true;
}

void traffic_work(struct desk *desk, uint64_t stream, struct habits habits) {
  uint64_t random = random_start(stream);
  uint32_t cell;
  while (next_order(desk, &cell) && cell_verb(cell) != VERB_QUIT) {
    CHECK_EQUAL(VERB_PLACE, cell_verb(cell));
    answer_order(desk, cell_slot(cell), &random, habits);
  }
}

/* The trainer. */

struct trainer trainer_new(struct ledger *ledger, uint64_t stream) {
  struct trainer trainer = {.ledger = ledger, .random = random_start(stream)};
  trainer.tickets = calloc(TICKETS_MAX, 1);
  CHECK(trainer.tickets != NULL);
  return trainer;
}

static uint64_t draw(struct trainer *trainer, uint64_t tickets_limit) {
  for (uint64_t ticket = 0; trainer->lost > 0 && ticket < trainer->next_ticket; ticket++) {
    if (trainer->tickets[ticket] == TICKET_LOST) return ticket;
  }
  return trainer->next_ticket < tickets_limit ? trainer->next_ticket : UINT64_MAX;
}

static uint32_t pick_worker(struct trainer *trainer) {
  uint32_t workers = trainer->ledger->geometry.workers;
  uint32_t worker = (uint32_t)random_below(&trainer->random, workers);
  while (trainer->absent[worker]) worker = (worker + 1) % workers;
  return worker;
}

static int64_t place_ticket(struct trainer *trainer, uint64_t ticket) {
  struct ledger *ledger = trainer->ledger;
  int64_t request[REQUEST_MOST];
  for (size_t i = 0; i < request_length(ticket); i++) request[i] = (int64_t)mix(ticket + i);
  /* Each order out could come back as kept, and each kept slot takes a spare. */
  bool spares_are_short = ledger->counts[SLOT_SPARE] <= 2 * ledger->counts[SLOT_PLACED] + 2;
  return ledger_place(ledger, pick_worker(trainer), ticket, REQUEST_INDICES, request,
                      8 * request_length(ticket), spares_are_short ? ORDER_COPY_IN : 0);
}

void trainer_place(struct trainer *trainer, uint64_t tickets_limit) {
  if (tickets_limit > TICKETS_MAX) tickets_limit = TICKETS_MAX;
  ledger_collect(trainer->ledger);
  while (trainer->ledger->free_count > 0) {
    uint64_t ticket = draw(trainer, tickets_limit);
    if (ticket == UINT64_MAX) return;
    int64_t slot = place_ticket(trainer, ticket);
    CHECK(slot >= 0, "errno %d", (int)-slot);
    trainer->lost -= trainer->tickets[ticket] == TICKET_LOST;
    trainer->next_ticket += ticket == trainer->next_ticket;
    trainer->tickets[ticket] = TICKET_PLACED;
    trainer->outstanding++;
  }
}

/*
 * Returns true if the oldest ticket waits for this slot's worker. A lost ticket is placed again
 * behind later ones, so it may have to wait for their wants too.
 */
static bool oldest_needs(const struct ledger *ledger, const struct ledger_entry *wanting) {
  uint64_t oldest = ledger_oldest(ledger);
  for (uint32_t slot = 0; slot < ledger->geometry.ranges; slot++) {
    const struct ledger_entry *entry = &ledger->entries[slot];
    if (entry->state == SLOT_PLACED && entry->ticket == oldest) {
      return entry->worker == wanting->worker;
    }
  }
  return false;
}

/* Grant a want if there is room, or if the oldest ticket needs it; refuse some. */
static void settle(struct trainer *trainer, uint32_t slot) {
  struct ledger *ledger = trainer->ledger;
  const struct ledger_entry *entry = &ledger->entries[slot];
  uint64_t want_bytes = entry->want_bytes;
  CHECK(want_bytes <= ledger->geometry.range_bytes);
  if (random_below(&trainer->random, 50) == 0) {
    trainer->refused++;
    ledger_refuse(ledger, slot);
  } else if (budget_room(ledger, slot, want_bytes) >= want_bytes || oldest_needs(ledger, entry)) {
    ledger_grant(ledger, slot, want_bytes);
  }
}

static void settle_wants(struct trainer *trainer) {
  struct ledger *ledger = trainer->ledger;
  for (uint32_t slot = 0; ledger->wanting > 0 && slot < ledger->geometry.ranges; slot++) {
    if (ledger->entries[slot].want_bytes != 0) settle(trainer, slot);
  }
}

void check_batch(const struct ledger *ledger, const struct lease *lease) {
  const struct ledger_entry *entry = &ledger->entries[lease->slot];
  const uint8_t *start = ledger->base + segment_slot_offset(&ledger->geometry, lease->slot);
  check_words((const uint64_t *)start, entry->ticket);
}

static void mark(struct trainer *trainer, uint64_t ticket, enum ticket_state state) {
  CHECK(ticket < trainer->next_ticket);
  CHECK_EQUAL(TICKET_PLACED, trainer->tickets[ticket]);
  trainer->tickets[ticket] = (uint8_t)state;
  trainer->outstanding--;
  trainer->lost += state == TICKET_LOST;
}

/* A READY slot: an error is placed again, a batch is checked and kept for a while. */
static void deliver(struct trainer *trainer, uint32_t slot) {
  const struct ledger_entry *entry = &trainer->ledger->entries[slot];
  uint64_t ticket = entry->ticket;
  trainer->kept += (entry->answer.flags & ANSWER_KEPT) != 0;
  if (entry->answer.kind == ANSWER_ERROR) {
    mark(trainer, ticket, TICKET_LOST);
    trainer->errors++;
    ledger_free(trainer->ledger, slot);
    return;
  }
  CHECK_EQUAL(ANSWER_BATCH, entry->answer.kind);
  CHECK_EQUAL(8 * payload_words(ticket), entry->answer.payload_bytes);
  mark(trainer, ticket, TICKET_DELIVERED);
  trainer->delivered++;
  struct lease *lease = ledger_lease(trainer->ledger, slot, 1);
  check_batch(trainer->ledger, lease);
  trainer->keep(trainer, lease);
}

bool trainer_receive(struct trainer *trainer) {
  struct news news;
  bool any = false;
  while (ledger_receive(trainer->ledger, &news)) {
    any = true;
    CHECK(news.broken == NULL, "worker %u, slot %u: %s", news.worker, news.slot,
          news.broken);
    if (news.verb == VERB_READY) deliver(trainer, news.slot);
  }
  settle_wants(trainer);
  return any;
}

void trainer_wait(struct trainer *trainer, int64_t timeout_ns) {
  struct doorbell *bell = &segment_control(trainer->ledger->base)->doorbell;
  uint32_t armed = doorbell_arm(bell);
  if (!ledger_has_news(trainer->ledger)) doorbell_park(bell, armed, timeout_ns);
  doorbell_disarm(bell);
}

void trainer_lose(struct trainer *trainer, uint32_t worker) {
  for (uint32_t slot = 0; slot < trainer->ledger->geometry.ranges; slot++) {
    const struct ledger_entry *entry = &trainer->ledger->entries[slot];
    bool is_theirs = worker == ANYBODY || entry->worker == worker;
    if (entry->state == SLOT_PLACED && is_theirs) mark(trainer, entry->ticket, TICKET_LOST);
  }
}

void trainer_finish(struct trainer *trainer) {
  int64_t deadline_ns = platform_now_ns() + MISSED_NS;
  while (trainer->outstanding > 0 || trainer->lost > 0) {
    trainer_place(trainer, trainer->next_ticket);
    if (!trainer_receive(trainer)) trainer_wait(trainer, SLICE_NS);
    CHECK(platform_now_ns() < deadline_ns, "%" PRIu64 " tickets never came", trainer->outstanding);
  }
}

void trainer_close(struct trainer *trainer) {
  for (uint64_t ticket = 0; ticket < trainer->next_ticket; ticket++) {
    CHECK(trainer->tickets[ticket] == TICKET_DELIVERED, "ticket %" PRIu64, ticket);
  }
  CHECK_EQUAL(trainer->next_ticket, trainer->delivered);
  free(trainer->tickets);
}

/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Two threads read two slots and drop an alias of each, while the trainer collects what was
 * released, writes it again, and at last closes the stack: each slot ends once, after its last use.
 */

#include "lease.h"

#define RELEASED_CLOSED UINT32_MAX

enum { SLOTS = 2, DROPPERS = 2, SLOT_LEASED, SEGMENT_CLOSED };

/* Of the ledger, what the lease's end and the collecting trainer use. */
struct ledger_entry {
  plain<uint64_t> released_ns;
  plain<bool> gives_back, was_emptied;
  rl::atomic<uint32_t> next_released;
  plain<uint32_t> memory, ends;
};

struct ledger {
  rl::atomic<uint32_t> released;
  struct ledger_entry entries[SLOTS];
};

/* The use of a slot after its end, by the trainer or by the last thread. */
static void reuse(struct ledger *ledger, uint32_t slot) {
  struct ledger_entry *entry = &ledger->entries[slot];
  RL_ASSERT(entry->released_ns == 1);
  entry->memory = 0;
  entry->ends = entry->ends + 1;
}

static void give_back(struct ledger *ledger, uint32_t slot) {
  if (ledger->entries[slot].gives_back) reuse(ledger, slot);
}

static void note_leased(struct ledger *ledger) {
  for (auto &entry : ledger->entries) {
    if (entry.ends == 0) entry.gives_back = true;
  }
}

/* Written as by the original, which needs a segment for the rest. */
static void empty_early(struct ledger *ledger, uint32_t slot) {
  ledger->entries[slot].was_emptied = true;
}

static void make_free(struct ledger *ledger, uint32_t slot) { reuse(ledger, slot); }
static int64_t platform_now_ns() { return 1; }
static bool is_in(struct ledger *, uint32_t, int) { return true; }
static bool ledger_is_copy(struct ledger *) { return false; }

/* Beside the memory orders: figures, debugging, the segment's own end. */
static void nothing(...) {}
#define note_emptied nothing
#define note_comeback nothing
#define log_release nothing
#define log_segment nothing
#define budget_trim nothing
#define guard_release nothing
#define ledger_unref nothing

#include "released.c"

struct lease_program : rl::test_suite<lease_program, DROPPERS + 1> {
  struct ledger ledger;
  struct lease leases[SLOTS];

  void before() {
    ledger.released.store(0, memory_order_relaxed);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
      ledger.entries[slot].memory = slot + 1;
      ledger.entries[slot].next_released.store(0, memory_order_relaxed);
      leases[slot].slot = slot;
      leases[slot].owner = &ledger;
      leases[slot].end = slot_lease_end;
      lease_begin(&leases[slot], DROPPERS);
    }
  }

  void use(uint32_t slot) {
    RL_ASSERT(ledger.entries[slot].memory == slot + 1);
    lease_drop(&leases[slot]);
  }

  void thread(unsigned index) {
    if (index < DROPPERS) {
      use(index);
      use(1 - index);
    } else {
      ledger_collect(&ledger);
      ledger_collect(&ledger);
      ledger_close(&ledger);
    }
  }

  void after() {
    for (auto &entry : ledger.entries) RL_ASSERT(entry.ends == 1);
  }
};

int main(int, char **arguments) { return explore<lease_program>(arguments); }

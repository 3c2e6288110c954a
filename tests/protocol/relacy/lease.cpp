// SPDX-License-Identifier: BSD-3-Clause

// Two threads read two slots and drop their aliases of both; the trainer collects, and writes anew.

#include "shim.hpp"

enum { SLOTS = 2, READERS = 2 };

struct dropped_and_collected : rl::test_suite<dropped_and_collected, READERS + 1> {
  // As much of a ledger as the stack of released slots needs.
  enum { RELEASED_CLOSED = UINT32_MAX, SLOT_LEASED = 0 };
  struct ledger_entry {
    shared<uint32_t> next_released;
    bool was_emptied = false;
  };
  struct ledger {
    shared<uint32_t> released;
    ledger_entry entries[SLOTS];
  };
  bool ledger_is_copy(ledger *) { return false; }
  bool is_in(ledger *, uint32_t, int) { return true; }
  void note_emptied(ledger *, uint32_t) {}
  void note_comeback(ledger *, uint32_t) {}
  void log_release(ledger *, uint32_t) {}
  void make_free(ledger *, uint32_t slot) {
    batches[slot]($) = 2;
    freed++;
  }

#include "sources.inc"

  ledger book;
  lease leases[SLOTS];
  rl::var<int> batches[SLOTS];
  unsigned freed;

  static void end(lease *lease) {
    auto *test = (dropped_and_collected *)lease->owner;
    RL_ASSERT(test->push_released(&test->book, lease->slot));
  }

  void before() {
    freed = 0;
    book.released.store(0, memory_order_relaxed);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
      leases[slot].slot = slot;
      leases[slot].owner = this;
      leases[slot].end = end;
      lease_begin(&leases[slot], READERS);
      batches[slot]($) = 1;
    }
  }

  void thread(unsigned index) {
    if (index == READERS) return collect();
    for (unsigned i = 0; i < SLOTS; i++) {
      uint32_t slot = (index + i) % SLOTS;
      RL_ASSERT(batches[slot]($) == 1);
      lease_drop(&leases[slot]);
    }
  }

  void collect() {
    rl::linear_backoff backoff;
    while (freed < SLOTS) {
      ledger_collect(&book);
      backoff.yield($);
    }
  }
};

int main() { return played<dropped_and_collected>(50000); }

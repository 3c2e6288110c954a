/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A writer and a reader on a ring of two cells whose positions wrap. A cell belongs to one side at
 * a time, so it is a plain word here: a race for it shows what relacy, which never moves a load
 * behind a later store, cannot show as a wrong value.
 */

#include "platform.h"

#define RING_CELLS 2

#include "ring.h"

enum { VALUES = 5 };

struct ring_program : rl::test_suite<ring_program, 2> {
  struct ring ring;
  plain<uint32_t> slots[VALUES];

  void before() { ring_init(&ring, UINT32_MAX - 2); }

  void write() {
    struct ring_writer end = ring_open_writer(&ring, RING_CELLS);
    for (uint32_t value = 0; value < VALUES; value++) {
      slots[value] = value + 10;
      while (!ring_push(&end, value)) rl::yield(1, $);
    }
  }

  void read() {
    struct ring_reader end = ring_open_reader(&ring, RING_CELLS);
    for (uint32_t expected = 0; expected < VALUES; expected++) {
      uint32_t value;
      while (!ring_pop(&end, &value)) rl::yield(1, $);
      RL_ASSERT(value == expected && slots[value] == expected + 10);
    }
    RL_ASSERT(!ring_is_overrun(&end) && !ring_has_value(&end));
  }

  void thread(unsigned index) { index == 0 ? write() : read(); }
};

int main(int, char **arguments) { return explore<ring_program>(arguments); }

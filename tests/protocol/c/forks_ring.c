/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A writer process that is killed at any instruction: the pushed values are a sequence without a
 * hole, and the next writer goes on behind it.
 */

#include "check.h"
#include "doorbell.h"
#include "ring.h"

#include <signal.h>
#include <sys/prctl.h>

enum { CAPACITY = 16, LIVES_MOST = 100000 };

struct shared {
  struct doorbell full, empty;
  alignas(CACHE_LINE) uint8_t ring[4096];
};

static struct shared *shared_new(void) {
  void *memory = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  CHECK(ring_bytes(CAPACITY) <= sizeof ((struct shared *)memory)->ring);
  return memory;
}

static bool is_full(struct ring_writer *writer) {
  return writer->write_pos - atomic_load(&writer->ring->read_pos) > writer->mask;
}

/* Push the numbers that follow the last one pushed, for ever. */
static _Noreturn void write_on(struct shared *shared) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  struct ring_writer writer = ring_open_writer((struct ring *)shared->ring, CAPACITY);
  for (;;) {
    while (!ring_push(&writer, writer.write_pos)) {
      uint32_t armed = doorbell_arm(&shared->empty);
      if (is_full(&writer)) doorbell_park(&shared->empty, armed, 100000000);
      doorbell_disarm(&shared->empty);
    }
    doorbell_ring(&shared->full);
  }
}

/* Read for a while; a ring after the last value may be missing, hence the short park. */
static uint64_t read_on(struct shared *shared, struct ring_reader *reader, int64_t until_ns) {
  uint64_t count = 0;
  while (platform_now_ns() < until_ns) {
    uint32_t expected = reader->read_pos, value;
    if (ring_pop(reader, &value)) {
      CHECK_EQUAL(expected, value);
      count++;
      if (count % (CAPACITY / 2) == 0) doorbell_ring(&shared->empty);
      continue;
    }
    doorbell_ring(&shared->empty);
    uint32_t armed = doorbell_arm(&shared->full);
    if (!ring_has_value(reader)) doorbell_park(&shared->full, armed, 1000000);
    doorbell_disarm(&shared->full);
  }
  return count;
}

static void end_child(pid_t child) {
  CHECK_EQUAL(0, kill(child, SIGKILL));
  check_ends_killed(child, SIGKILL);
}

TEST(killed_writer_leaves_no_hole) {
  struct shared *shared = shared_new();
  struct ring *ring = (struct ring *)shared->ring;
  uint64_t random = random_start(1), count = 0, lives = 0;
  ring_init(ring, UINT32_MAX - 1000);
  struct ring_reader reader = ring_open_reader(ring, CAPACITY);
  for (struct limit limit = limit_of(1, LIVES_MOST); limit_allows(&limit); lives++) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) write_on(shared);
    int64_t life_ns = (int64_t)random_below(&random, 3000000);
    count += read_on(shared, &reader, platform_now_ns() + life_ns);
    end_child(child);
    CHECK(ring_length(&reader) <= CAPACITY);
  }
  printf("%" PRIu64 " values of %" PRIu64 " writers\n", count, lives);
  CHECK(count > 0);
  munmap(shared, sizeof *shared);
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* The geometry: parts do not overlap, lie on their lines, and numbers that are too large fail. */

#include "check.h"
#include "segment.h"

static struct geometry geometry_of(uint32_t workers, uint32_t ranges, uint64_t range_bytes) {
  struct geometry geometry;
  CHECK_EQUAL(0, geometry_init(&geometry, workers, ranges, range_bytes));
  return geometry;
}

static uint64_t offset_of(const uint8_t *base, const void *part) {
  return (uint64_t)((const uint8_t *)part - base);
}

/* Walk over all parts in order: each starts on a line, where the one before it has ended. */
static void check_walk(uint8_t *base, const struct geometry *geometry) {
  uint64_t end = sizeof(struct control_block);
  for (uint32_t worker = 0; worker < geometry->workers; worker++) {
    CHECK_EQUAL(end, offset_of(base, segment_worker(base, geometry, worker)));
    end += sizeof(struct worker_block);
    CHECK_EQUAL(end, offset_of(base, segment_task_ring(base, geometry, worker)));
    end += ring_bytes(geometry->ring_capacity);
    CHECK_EQUAL(end, offset_of(base, segment_ready_ring(base, geometry, worker)));
    end += ring_bytes(geometry->ring_capacity);
    CHECK_EQUAL(0, end % CACHE_LINE);
  }
  for (uint32_t slot = 0; slot < geometry->ranges; slot++) {
    CHECK_EQUAL(end, offset_of(base, segment_header(base, geometry, slot)));
    end += sizeof(struct slot_header);
  }
  for (uint32_t place = 0; place < LOG_RECORDS; place++) {
    CHECK_EQUAL(end, offset_of(base, segment_record(base, geometry, place)));
    end += sizeof(struct log_record);
  }
  CHECK_EQUAL(end, geometry->table_end);
  CHECK(end <= geometry->slots_offset);
  for (uint32_t slot = 0; slot < geometry->ranges; slot++) {
    CHECK_EQUAL(geometry->slots_offset + slot * geometry->range_bytes,
                segment_slot_offset(geometry, slot));
  }
  CHECK_EQUAL(segment_slot_offset(geometry, geometry->ranges), geometry->total_bytes);
}

TEST(parts_follow_each_other) {
  static const uint32_t workers[] = {1, 2, 3, 64}, ranges[] = {1, 2, 5, 200};
  alignas(CACHE_LINE) uint8_t base[CACHE_LINE];
  for (size_t i = 0; i < LENGTH(workers); i++) {
    for (size_t j = 0; j < LENGTH(ranges); j++) {
      struct geometry geometry = geometry_of(workers[i], ranges[j], 1);
      check_walk(base, &geometry);
    }
  }
}

TEST(ranges_are_whole_huge_pages) {
  static const uint64_t lengths[] = {1, HUGE_BYTES - 1, HUGE_BYTES, HUGE_BYTES + 1};
  static const uint64_t expected[] = {HUGE_BYTES, HUGE_BYTES, HUGE_BYTES, 2 * HUGE_BYTES};
  for (size_t i = 0; i < LENGTH(lengths); i++) {
    struct geometry geometry = geometry_of(1, 3, lengths[i]);
    CHECK_EQUAL(expected[i], geometry.range_bytes);
    CHECK_EQUAL(0, geometry.slots_offset % HUGE_BYTES);
  }
}

/* All slots and the control values fit a ring together. */
TEST(ring_holds_every_slot) {
  static const uint32_t ranges[] = {1, 7, 8, 9, 1000, SLOTS_MAX};
  for (size_t i = 0; i < LENGTH(ranges); i++) {
    CHECK(geometry_of(1, ranges[i], 1).ring_capacity >= ranges[i] + 3);
    CHECK(geometry_of(1, ranges[i], 1).ring_capacity <= RING_CAPACITY_MAX);
  }
}

/* Ranges of 64 GiB, as many as there may be: nothing wraps. */
TEST(large_segments_are_counted_in_64_bits) {
  uint64_t range_bytes = UINT64_C(1) << 36;
  struct geometry geometry = geometry_of(1, 1 << 20, range_bytes);
  CHECK_EQUAL(geometry.slots_offset + (UINT64_C(1) << 56), geometry.total_bytes);
  CHECK_EQUAL(geometry.slots_offset + ((UINT64_C(1) << 20) - 1) * range_bytes,
              segment_slot_offset(&geometry, (1 << 20) - 1));
}

TEST(impossible_numbers_are_refused) {
  static const struct {
    uint32_t workers, ranges;
    uint64_t range_bytes;
  } numbers[] = {
      {0, 1, 1},
      {1, 0, 1},
      {1, 1, 0},
      {SLOTS_MAX + 1, 1, 1},
      {1, SLOTS_MAX + 1, 1},
      {1, UINT32_MAX, 1},
      {UINT32_MAX, 1, 1},
      {1, 1, UINT64_MAX},
      {1, 1, UINT64_C(1) << 62},
      {1, 4, UINT64_C(1) << 60},
      {1, SLOTS_MAX, UINT64_C(1) << 39},
  };
  for (size_t i = 0; i < LENGTH(numbers); i++) {
    struct geometry geometry;
    int error = geometry_init(&geometry, numbers[i].workers, numbers[i].ranges,
                              numbers[i].range_bytes);
    CHECK(error == -EINVAL, "case %zu gives %d", i, error);
  }
}

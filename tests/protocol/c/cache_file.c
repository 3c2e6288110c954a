/* SPDX-License-Identifier: BSD-3-Clause */
#include "cache_file.h"

#include "segment.h"

enum { PAGE_BYTES = 4096, LAYOUT_BYTES = 11 };

static struct cache open_file(int fd, const struct cache_shape *shape) {
  struct cache cache;
  void *base = mmap(NULL, shape->total_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(base != MAP_FAILED);
  cache_open(&cache, base, fd, shape);
  return cache;
}

struct cache cache_new(uint64_t indices, uint64_t max_bytes) {
  struct cache_shape shape = {.indices = indices,
                              .max_bytes = max_bytes,
                              .page_bytes = PAGE_BYTES};
  CHECK(cache_measure(&shape));
  int fd = memfd_create("cache", MFD_CLOEXEC);
  CHECK(fd >= 0);
  CHECK_EQUAL(0, ftruncate(fd, (off_t)shape.total_bytes));
  struct cache cache = open_file(fd, &shape);
  CHECK_EQUAL(0, cache_make(&cache));
  return cache;
}

struct cache cache_again(const struct cache *cache) {
  int fd = dup(cache->fd);
  CHECK(fd >= 0);
  return open_file(fd, &cache->shape);
}

static uint8_t byte_of(uint64_t index) { return (uint8_t)(index * 37 + 1); }

static uint64_t find_place(struct cache *cache, uint64_t bytes) {
  uint64_t at = cache_place(cache, bytes);
  if (at != 0) return at;
  uint64_t length = cache_take(cache, bytes, &at);
  if (length == 0) return 0;
  CHECK_EQUAL(0, cache_add_pages(cache, at, length));
  return cache_hold(cache, at, length, bytes);
}

bool cache_fill(struct cache *cache, uint64_t index, uint64_t payload_bytes) {
  struct cache_head head = {index, payload_bytes, LAYOUT_BYTES, 0};
  uint64_t bytes = cache_record_bytes(&head);
  uint64_t at = find_place(cache, bytes);
  if (at == 0) return false;
  CHECK(at % CACHE_LINE == 0 && at >= cache->shape.data_offset);
  CHECK(at + bytes <= cache->shape.total_bytes);
  uint8_t *start = cache->base + at;
  memcpy(start, &head, sizeof head);
  memset(start + sizeof head, byte_of(index), LAYOUT_BYTES);
  memset(start + bytes - round_up(payload_bytes, CACHE_LINE), byte_of(index), payload_bytes);
  if (cache_publish(cache, index, at)) return true;
  cache_give_up(cache, at, bytes);
  return false;
}

bool cache_check(const struct cache *cache, uint64_t index) {
  struct cache_record found;
  enum cache_found how = cache_look(cache, index, &found);
  CHECK(how != CACHE_BROKEN, "index %" PRIu64, index);
  if (how == CACHE_MISS) return false;
  CHECK_EQUAL(index, found.head.index);
  CHECK_EQUAL(LAYOUT_BYTES, found.head.layout_bytes);
  for (uint64_t i = 0; i < LAYOUT_BYTES; i++) CHECK_EQUAL(byte_of(index), found.layout[i]);
  for (uint64_t i = 0; i < found.head.payload_bytes; i++) {
    CHECK_EQUAL(byte_of(index), found.payload[i]);
  }
  return true;
}

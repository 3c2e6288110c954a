/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A cache of samples in one file that any number of processes map.
 *
 *   0          words_offset        data_offset                                       total_bytes
 *   | control | a word per index |  | piece | piece | ...            | never taken yet |
 *
 * A word is CACHE_ABSENT, CACHE_REFUSED, or the place of the index's record: its distance from the
 * start of the file. It changes once, from CACHE_ABSENT, by one compare-and-swap, and never again.
 *
 * A process fills pieces of its own, so a record is written by one process while no other knows
 * where it is. The word shows it when it is whole. Two that fetched the same sample both write it;
 * the second finds the word changed, and uses the room again. So nobody waits, nothing is claimed
 * ahead, and no index is lost if a process dies.
 *
 * Key invariant: what a word shows is never written again, and never moved. Nothing is evicted.
 *
 * Pieces are taken by one compare-and-swap of `taken`, which never passes total_bytes. They get
 * shorter as less is left, and hold a number of records like the one that asks for them: so little
 * is wasted in pieces that are not filled, or where no other record fits in. Their pages
 * are added before anything is written there, so no store faults for want of memory. A process's
 * piece is known by its generation: a forked child has a copy of its parent's cursor, and takes a
 * piece of its own.
 *
 * A process that dies leaves the rest of its piece unused, and loses at most its last counts: it
 * was before the compare-and-swap of a word, and then nothing of the record is seen, or after it.
 *
 * What is read is checked, because any process may have a fault that writes here: a place lies
 * between data_offset and `taken`, a head is copied out before it is checked, and its lengths end
 * before total_bytes. So nothing outside of the file is read, and no page is made by reading.
 *
 * `closed` is stored before the pages are given back, and a reader loads it after its copy. A copy
 * of pages that are gone is followed by a 1, so it is never used. A process that is just writing
 * may make some of the pages again; they go with the last mapping.
 */

#include "cache.h"

#include "generation.h"
#include "policy.h"
#include "segment.h"

/* The place of a record's payload after a layout. */
static uint64_t payload_at(uint64_t at, uint64_t layout_bytes) {
  return round_up(at + sizeof(struct cache_head) + layout_bytes, CACHE_LINE);
}

static struct cache_control *control_of(const struct cache *cache) {
  return (struct cache_control *)cache->base;
}

static _Atomic uint64_t *word_of(const struct cache *cache, uint64_t index) {
  return (_Atomic uint64_t *)(cache->base + cache->shape.words_offset) + index;
}

bool cache_measure(struct cache_shape *shape) {
  uint64_t page = shape->page_bytes;
  if (shape->indices > UINT64_MAX / 16 || shape->max_bytes > INT64_MAX) return false;
  shape->words_offset = round_up(sizeof(struct cache_control), page);
  shape->data_offset = round_up(shape->words_offset + 8 * shape->indices, page);
  shape->total_bytes = shape->max_bytes / page * page;
  return shape->data_offset < shape->total_bytes;
}

void cache_open(struct cache *cache, uint8_t *base, int fd, const struct cache_shape *shape) {
  *cache = (struct cache){.base = base, .fd = fd, .file = platform_file_of(fd), .shape = *shape};
  cache->generation = generation_now();
  cache->line = (uint32_t)getpid() % CACHE_COUNTERS;
  platform_leave_undumped(base + shape->data_offset, shape->total_bytes - shape->data_offset);
}

static int add_all_pages(const struct cache *cache, uint64_t at, uint64_t length) {
  if (!platform_is_file(cache->fd, cache->file)) return -EBADF;
  for (uint64_t done = 0; done < length;) {
    int64_t added =
        platform_reserve(cache->fd, at + done, length - done, cache->shape.page_bytes);
    if (added < 0) return (int)added;
    done += (uint64_t)added;
  }
  return 0;
}

int cache_make(struct cache *cache) {
  int error = add_all_pages(cache, 0, cache->shape.data_offset);
  if (error != 0) return error;
  /* relaxed: no other process has the file yet. */
  atomic_store_explicit(&control_of(cache)->taken, cache->shape.data_offset, memory_order_relaxed);
  STEP("make: cache");
  return 0;
}

bool cache_is_absent(const struct cache *cache, uint64_t index) {
  /* relaxed: nothing is read because of it. */
  return atomic_load_explicit(word_of(cache, index), memory_order_relaxed) == CACHE_ABSENT;
}

/* Where pieces end that were taken so far, which nothing can move beyond the file. */
static uint64_t end_of_pieces(const struct cache *cache) {
  /* relaxed: a bound, and the word that was read before was published after its piece was taken. */
  uint64_t taken = atomic_load_explicit(&control_of(cache)->taken, memory_order_relaxed);
  return taken < cache->shape.total_bytes ? taken : cache->shape.total_bytes;
}

uint64_t cache_taken(const struct cache *cache) {
  return cache_is_closed(cache) ? cache->shape.data_offset : end_of_pieces(cache);
}

enum cache_found cache_look(const struct cache *cache, uint64_t index, struct cache_record *found) {
  /* sync cached-A <- cached-R: the record that the word shows is whole. */
  uint64_t at = atomic_load_explicit(word_of(cache, index), memory_order_acquire);
  if (at == CACHE_ABSENT || at == CACHE_REFUSED) return CACHE_MISS;
  uint64_t end = end_of_pieces(cache);
  if (at % CACHE_LINE != 0 || at < cache->shape.data_offset || at >= end) return CACHE_BROKEN;
  if (end - at < sizeof(struct cache_head)) return CACHE_BROKEN;
  words_read(&found->head, cache->base + at, sizeof(struct cache_head));
  uint64_t layout = at + sizeof(struct cache_head);
  if (found->head.index != index || found->head.layout_bytes == 0) return CACHE_BROKEN;
  if (found->head.layout_bytes > end - layout) return CACHE_BROKEN;
  uint64_t payload = payload_at(at, found->head.layout_bytes);
  if (found->head.payload_bytes > 0 &&
      (payload > end || found->head.payload_bytes > end - payload)) {
    return CACHE_BROKEN;
  }
  found->layout = cache->base + layout;
  found->payload = cache->base + payload;
  return CACHE_HIT;
}

uint64_t cache_record_bytes(const struct cache_head *head) {
  uint64_t behind = payload_at(0, head->layout_bytes);
  return round_up(behind + head->payload_bytes, CACHE_LINE);
}

uint64_t cache_place(struct cache *cache, uint64_t bytes) {
  uint64_t now = generation_now();
  if (cache->generation != now) {
    /* A forked child: the piece in hand is its parent's. */
    cache->generation = now;
    cache->cursor = cache->end = 0;
    cache->line = (uint32_t)getpid() % CACHE_COUNTERS;
  }
  if (bytes > cache->end - cache->cursor) return 0;
  uint64_t at = cache->cursor;
  cache->cursor += bytes;
  return at;
}

/* How long a piece would be after `taken`, which may have been forged; 0: none. */
static uint64_t length_behind(const struct cache *cache, uint64_t taken, uint64_t bytes) {
  const struct cache_shape *shape = &cache->shape;
  if (taken < shape->data_offset || taken > shape->total_bytes || taken % shape->page_bytes != 0) {
    return 0;
  }
  uint64_t left = shape->total_bytes - taken;
  if (bytes > left) return 0;
  uint64_t length = left / POLICY_CACHE_PIECES_PART;
  if (length > POLICY_CACHE_PIECE_MAX_BYTES) length = POLICY_CACHE_PIECE_MAX_BYTES;
  length = length > bytes ? length / bytes * bytes : bytes;
  /* Both are whole pages, so what is left is too. */
  return round_up(length, shape->page_bytes);
}

uint64_t cache_wanted(const struct cache *cache, uint64_t bytes) {
  /* relaxed: a look ahead, which cache_take repeats. */
  uint64_t taken = atomic_load_explicit(&control_of(cache)->taken, memory_order_relaxed);
  return cache_is_closed(cache) ? 0 : length_behind(cache, taken, bytes);
}

uint64_t cache_take(const struct cache *cache, uint64_t bytes, uint64_t *at) {
  _Atomic uint64_t *taken = &control_of(cache)->taken;
  /* relaxed: the exchange decides. */
  uint64_t before = atomic_load_explicit(taken, memory_order_relaxed);
  uint64_t length;
  do {
    length = length_behind(cache, before, bytes);
    if (length == 0) return 0;
    /* relaxed: pieces share no byte, and what is written there is published by its word. */
  } while (!atomic_compare_exchange_weak_explicit(taken, &before, before + length,
                                                  memory_order_relaxed, memory_order_relaxed));
  STEP("keep: piece taken");
  *at = before;
  return length;
}

int cache_add_pages(const struct cache *cache, uint64_t at, uint64_t length) {
  int error = add_all_pages(cache, at, length);
  STEP("keep: pages added");
  if (error == 0) return 0;
  uint64_t end = at + length;
  /* relaxed: nothing was written there. If another piece was taken after it, this one is lost. */
  (void)atomic_compare_exchange_strong_explicit(&control_of(cache)->taken, &end, at,
                                                memory_order_relaxed, memory_order_relaxed);
  return error;
}

uint64_t cache_hold(struct cache *cache, uint64_t at, uint64_t length, uint64_t bytes) {
  if (cache->end == at) {
    /* They lie side by side, so nothing of the old one is lost. */
    cache->end += length;
    return cache_place(cache, bytes);
  }
  if (length - bytes > cache->end - cache->cursor) {
    cache->cursor = at + bytes;
    cache->end = at + length;
  }
  return at;
}

void cache_give_up(struct cache *cache, uint64_t at, uint64_t bytes) {
  if (cache->cursor == at + bytes) cache->cursor = at;
}

bool cache_publish(const struct cache *cache, uint64_t index, uint64_t at) {
  uint64_t absent = CACHE_ABSENT;
  /* sync cached-R -> cached-A: the record is whole before its word shows it. */
  /* relaxed: if another process was first, this record is given up unread. */
  bool is_first = atomic_compare_exchange_strong_explicit(
      word_of(cache, index), &absent, at, memory_order_release, memory_order_relaxed);
  STEP("keep: published");
  return is_first;
}

void cache_refuse(const struct cache *cache, uint64_t index) {
  uint64_t absent = CACHE_ABSENT;
  /* relaxed: nothing is read because of it. */
  (void)atomic_compare_exchange_strong_explicit(word_of(cache, index), &absent, CACHE_REFUSED,
                                                memory_order_relaxed, memory_order_relaxed);
  STEP("unkept: marked");
}

static void add(_Atomic uint64_t *count, uint64_t number) {
  /* relaxed: counts order nothing. */
  if (number > 0) atomic_fetch_add_explicit(count, number, memory_order_relaxed);
}

void cache_count(const struct cache *cache, uint64_t hits, uint64_t misses, uint64_t entries,
                 uint64_t bytes, uint64_t refused) {
  struct cache_counts *counts = &control_of(cache)->counts[cache->line];
  add(&counts->hits, hits);
  add(&counts->misses, misses);
  add(&counts->entries, entries);
  add(&counts->bytes, bytes);
  add(&counts->refused, refused);
}

void cache_total(const struct cache *cache, uint64_t total[CACHE_COUNTS]) {
  memset(total, 0, CACHE_COUNTS * sizeof *total);
  for (int line = 0; line < CACHE_COUNTERS; line++) {
    uint64_t counts[CACHE_COUNTS];
    words_read(counts, &control_of(cache)->counts[line], sizeof counts);
    for (int i = 0; i < CACHE_COUNTS; i++) total[i] += counts[i];
  }
}

bool cache_is_closed(const struct cache *cache) {
  /* sync given-up-A <- given-up-R: pages that read as zeros were given back after the store. */
  return atomic_load_explicit(&control_of(cache)->closed, memory_order_acquire) != 0;
}

void cache_close(struct cache *cache) {
  struct cache_control *control = control_of(cache);
  /* sync given-up-R -> given-up-A: it is there before any page is gone. */
  atomic_store_explicit(&control->closed, 1, memory_order_release);
  STEP("forsake: closed");
  uint64_t data = cache->shape.data_offset;
  if (!platform_is_file(cache->fd, cache->file)) return;
  (void)platform_punch(cache->fd, data, cache->shape.total_bytes - data);
}

void cache_unmap(struct cache *cache) {
  if (cache->base == NULL) return;
  munmap(cache->base, cache->shape.total_bytes);
  cache->base = NULL;
  platform_close(cache->fd, cache->file);
}

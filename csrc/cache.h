/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_CACHE_H
#define SHMLOADER_CACHE_H

/*
 * Samples that were fetched once, for all processes that map the same file. cache.c opens with what
 * they promise each other. A `struct cache` is one process's end; the rest lies in the file.
 */

#include "words.h"

#define CACHE_COUNTERS 32 /* processes are spread over so many lines of counts */
#define CACHE_COUNTS 5 /* fields of cache_counts */

/* An index's word: one of these, or its record's place, { cache line: 63..6, 0: 5..0 }. */
enum { CACHE_ABSENT = 0, CACHE_REFUSED = 1 };

/* What some of the processes did. Each of them adds to one line; a killed one may lose its last. */
struct cache_counts {
  alignas(CACHE_LINE) _Atomic uint64_t hits;
  _Atomic uint64_t misses;
  _Atomic uint64_t entries; /* records that were published */
  _Atomic uint64_t bytes;   /* of them */
  _Atomic uint64_t refused; /* pieces that were not taken, because memory was short */
};

struct cache_control {
  alignas(CACHE_LINE) _Atomic uint64_t taken; /* after the last piece; any process moves it on */
  alignas(CACHE_LINE) _Atomic uint64_t closed; /* 1: its maker has given it up, and its pages */
  struct cache_counts counts[CACHE_COUNTERS];
};

/* How long the parts are; the first five are the caller's. */
struct cache_shape {
  uint64_t indices;
  uint64_t max_bytes;
  uint64_t page_bytes;
  uint64_t words_offset;
  uint64_t data_offset;
  uint64_t total_bytes;
};

/* One process's end. */
struct cache {
  uint8_t *base;
  int fd;
  struct platform_file file; /* what fd means */
  struct cache_shape shape;
  uint64_t generation; /* the copy of the process that the piece belongs to */
  uint64_t cursor;     /* in the piece in hand: what is after it is free */
  uint64_t end;
  uint32_t line; /* of counts */
};

/* In front of each record, on a cache line: then its layout, and on another line its payload. */
struct cache_head {
  uint64_t index;
  uint64_t payload_bytes;
  uint32_t layout_bytes; /* at least 1 */
  uint32_t checksum;     /* of the layout, begun with the other numbers */
};

/* Where a record lies in this process. */
struct cache_record {
  struct cache_head head;
  const uint8_t *layout;
  const uint8_t *payload;
};

enum cache_found { CACHE_MISS, CACHE_HIT, CACHE_BROKEN };

/* Measure the parts. False: the words alone leave no room for a record in max_bytes. */
bool cache_measure(struct cache_shape *shape);

/* Begin with a file that is mapped at base. */
void cache_open(struct cache *cache, uint8_t *base, int fd, const struct cache_shape *shape);

/* Add the pages of all that stands before the pieces. Its maker, once. 0 or -errno. */
int cache_make(struct cache *cache);

/*
 * Look for an index below shape.indices. Any thread of any process; wait-free. CACHE_BROKEN: what
 * stands there was written by no process that keeps to the rules. What is found stays as it is
 * until cache_close; the caller copies it, and asks cache_is_closed afterwards.
 */
enum cache_found cache_look(const struct cache *cache, uint64_t index, struct cache_record *found);

/* True if nothing was said about an index so far. Any thread; wait-free. */
bool cache_is_absent(const struct cache *cache, uint64_t index);

/* The calls of one process that fill its piece come one at a time: with Python, under its lock. */

/* Bytes of a record on its way to `at`, which is a place on a cache line. */
uint64_t cache_record_bytes(const struct cache_head *head);

/* Find room for a record in the piece in hand. 0: it has not enough. Wait-free. */
uint64_t cache_place(struct cache *cache, uint64_t bytes);

/* How long a piece would be that is taken for such a record; 0: what is left is too small. */
uint64_t cache_wanted(const struct cache *cache, uint64_t bytes);

/*
 * Take a piece for such a record: [*at, *at + length). Any thread; lock-free.
 * Returns its length; 0: what is left is too small.
 */
uint64_t cache_take(const struct cache *cache, uint64_t bytes, uint64_t *at);

/*
 * Add the pages of a piece that was just taken. Any thread; may wait for the kernel.
 * 0, or -errno: then the piece was given back, if no other was taken after it.
 */
int cache_add_pages(const struct cache *cache, uint64_t at, uint64_t length);

/* Go on with a piece that has pages, and return a place there for the record it was taken for. */
uint64_t cache_hold(struct cache *cache, uint64_t at, uint64_t length, uint64_t bytes);

/* Give up a place that `cache_place` or `cache_hold` returned: nothing will be published there. */
void cache_give_up(struct cache *cache, uint64_t at, uint64_t bytes);

/* Show the record at a place. False: another process was first. Any thread; wait-free. */
bool cache_publish(const struct cache *cache, uint64_t index, uint64_t at);

/* Say that an index's sample cannot be kept, so that nobody tries again. Any thread; wait-free. */
void cache_refuse(const struct cache *cache, uint64_t index);

/* Add to this process's counts. Any thread; wait-free. */
void cache_count(const struct cache *cache, uint64_t hits, uint64_t misses, uint64_t entries,
                 uint64_t bytes, uint64_t refused);

/* Sum the counts of all processes, in the order of the fields. Any thread; wait-free. */
void cache_total(const struct cache *cache, uint64_t total[CACHE_COUNTS]);

/* Bytes of the file after which no piece was taken. Any thread; wait-free. */
uint64_t cache_taken(const struct cache *cache);

/* True if the maker has given it up. Any thread; wait-free. */
bool cache_is_closed(const struct cache *cache);

/* Give it up: other processes fetch from now on, and the pages go back at once. Its maker. */
void cache_close(struct cache *cache);

/* Unmap it, and close its descriptor. No thread of this process may use it any more. */
void cache_unmap(struct cache *cache);

_Static_assert(sizeof(struct cache_head) == 24, "a head is read as three words");
_Static_assert(sizeof(struct cache_counts) == CACHE_LINE, "processes do not share a line");

#endif

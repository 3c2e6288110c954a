/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_VIEW_H
#define SHMLOADER_VIEW_H

/*
 * What may be looked at while a loader runs, by the trainer and by other processes of its user:
 * which process made the segment, where the trainer is, and where each worker is. Nothing is
 * decided by it.
 *
 * A view has one writer and a sequence number in front, odd while the writer is in the middle of
 * it. A process that maps the segment reads it with view_read. Another process copies the bytes out
 * twice with pread, and uses them if both copies are equal and the number is even. A writer that
 * dies in the middle leaves an odd number; the next one goes on from there.
 *
 * The nameplate says by a checksum of fields.c's table which layout these structs, slot_times,
 * log_record and worker_clock have: no version is counted by hand.
 */

#include "words.h"

#define VIEW_MAGIC UINT64_C(0x726564616f6c6d73) /* "smloader" as little-endian bytes */
#define VIEW_LABEL_BYTES 48
#define VIEW_ABOUT_BYTES 512

/* An index, position or length that is not known. */
#define VIEW_UNKNOWN UINT64_MAX
#define VIEW_STARTING (UINT64_C(1) << 32) /* in the pid of a worker that has not sat down yet */
#define VIEW_UNKNOWN_INDEX INT64_MIN
#define VIEW_WHOLE_BATCH UINT32_MAX

enum segment_state {
  SEGMENT_LIVE = 1, /* an iterator uses it */
  SEGMENT_IDLE = 2, /* it waits for the loader's next epoch */
  SEGMENT_CLOSED = 3,
};

enum trainer_state {
  TRAINER_BETWEEN = 0, /* between two epochs */
  TRAINER_STEPPING = 1, /* the user has the batch */
  TRAINER_WAITING = 2, /* in next() */
};

enum worker_state {
  WORKER_ABSENT = 0,
  WORKER_IDLE = 1, /* no order is in hand */
  WORKER_FETCHING = 2,
  WORKER_COLLATING = 3,
  WORKER_BLOCKED = 4, /* waits for pages of its slot */
};

/* Which segment this is, and where its parts lie; for viewers alone. Written by the trainer. */
struct nameplate {
  alignas(CACHE_LINE) _Atomic uint64_t sequence; /* { writes: 63..1, the last is half done: 0 } */
  uint64_t magic;
  uint32_t layout;      /* view_layout_sum() of its maker */
  uint32_t state;
  uint64_t owner_pid;
  uint64_t owner_start; /* in clock ticks after boot, as /proc has it; 0: unknown */
  uint64_t loader;      /* counted in its process, from 1 */
  uint32_t workers;
  uint32_t log_records;
  uint64_t worker_offset; /* of the first worker block */
  uint64_t worker_stride;
  uint64_t answers_offset; /* from a worker's block to its ring of answers */
  uint64_t log_offset;
  uint64_t total_bytes;
  char label[VIEW_LABEL_BYTES]; /* UTF-8, filled up with zeros */
  char about[VIEW_ABOUT_BYTES]; /* what the loader is run with, as JSON; as label */
};

/* Where the trainer is in its epoch. Written by the trainer. */
struct trainer_view {
  _Atomic uint64_t sequence; /* { writes: 63..1, the last is half done: 0 } */
  uint32_t state;
  uint64_t epoch;    /* of the loader, from 1; 0: none has begun */
  uint64_t since_ns; /* when that state began */
  uint64_t begun_ns; /* when iter() was called for the epoch */
  uint64_t first_ns; /* when its first batch was returned; 0: none was */
  uint64_t length;   /* batches of this epoch; VIEW_UNKNOWN */
  uint64_t batches;  /* delivered in this epoch */
  uint64_t bytes;    /* of their payload */
  uint64_t parked_ns; /* in next() in this epoch */
  uint64_t spilled;  /* batches, in all epochs of the segment */
  uint64_t resident_bytes;
  uint64_t logged;   /* records that were ever written to the log */
  uint32_t counts[8]; /* slots by enum slot_state, as of since_ns */
  uint64_t resumed_at; /* batches of this epoch that an earlier run delivered; not in `batches` */
  uint64_t more[6];
};

/* Where a worker is. Written by the worker. */
struct worker_view {
  _Atomic uint64_t sequence; /* { writes: 63..1, the last is half done: 0 } */
  uint32_t state;
  uint64_t since_ns;
  uint64_t ticket;
  int64_t index;     /* of the dataset, for the sample that it fetches; VIEW_UNKNOWN_INDEX */
  uint32_t position; /* of that sample in its batch, from 0; VIEW_WHOLE_BATCH */
  uint32_t samples;  /* of the batch; 0: unknown */
  uint64_t sample_since_ns;
  uint64_t pid; /* { VIEW_STARTING: 32, pid: 31..0 }; 0: no worker has been there */
};

_Static_assert(sizeof(struct nameplate) % CACHE_LINE == 0, "a nameplate is whole lines");
_Static_assert(sizeof(struct trainer_view) == 3 * CACHE_LINE, "the trainer's view is three lines");
_Static_assert(sizeof(struct worker_view) == CACHE_LINE, "a worker's view is one line");

/* The words of a view after its sequence number. */
#define VIEW_BYTES(VIEW) (sizeof *(VIEW) - sizeof(uint64_t))

static inline void view_copy_in(_Atomic uint64_t *to, const void *from, size_t bytes) {
  for (size_t at = 0; at < bytes / sizeof(uint64_t); at++) {
    uint64_t word;
    memcpy(&word, (const uint64_t *)from + at, sizeof word);
    /* sync worded-R -> worded-A: the number is odd before any of the words is new. */
    atomic_store_explicit(&to[at], word, memory_order_release);
  }
}

/*
 * Write a view with a sequence number, which is even. Its writer only; wait-free.
 * words: those after the sequence number of a private copy, bytes long.
 */
static inline void view_write_as(_Atomic uint64_t *sequence, uint64_t even, const void *words,
                                 size_t bytes) {
  size_t half = bytes / 16 * sizeof(uint64_t);
  /* relaxed: each word is released after it. */
  atomic_store_explicit(sequence, even - 1, memory_order_relaxed);
  STEP("view: odd");
  view_copy_in(sequence + 1, words, half);
  STEP("view: half");
  view_copy_in(sequence + 1 + half / sizeof(uint64_t), (const uint8_t *)words + half, bytes - half);
  STEP("view: words");
  /* sync viewed-R -> viewed-A: the words are whole before the number is even. */
  atomic_store_explicit(sequence, even, memory_order_release);
  STEP("view: even");
}

/* Write a view with the next sequence number. Its writer only; wait-free. */
static inline void view_write(_Atomic uint64_t *sequence, const void *words, size_t bytes) {
  /* relaxed: only this process writes it; an odd one was left by a writer that died. */
  uint64_t odd = atomic_load_explicit(sequence, memory_order_relaxed) | 1;
  view_write_as(sequence, odd + 1, words, bytes);
}

/* Copy the words of a view out. Any process; wait-free. False: they may be half old, half new. */
static inline bool view_read(void *words, _Atomic uint64_t *sequence, size_t bytes) {
  /* sync viewed-A <- viewed-R: the words are at least as new as this number, if it is even. */
  uint64_t before = atomic_load_explicit(sequence, memory_order_acquire);
  for (size_t at = 0; at < bytes / sizeof(uint64_t); at++) {
    /* sync worded-A <- worded-R: with a new word, the number below is odd or later. */
    uint64_t word = atomic_load_explicit(&sequence[1 + at], memory_order_acquire);
    memcpy((uint64_t *)words + at, &word, sizeof word);
  }
  /* relaxed: the words' acquires order it after them. */
  uint64_t after = atomic_load_explicit(sequence, memory_order_relaxed);
  return before % 2 == 0 && before == after;
}

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_WORDS_H
#define SHMLOADER_WORDS_H

/*
 * Words of shared memory that another process may write at any moment, by right or by a fault of
 * its own. What is checked must be what is used, so each is loaded once, into private memory, and
 * checks and uses see that copy. The loads and stores are atomic, one word at a time: the compiler
 * can neither repeat nor split them, and a race is no undefined behaviour. A copy of several words
 * may be half old and half new; only a release and an acquire around it say that it is whole.
 */

#include "platform.h"

/* Load one word. Any process; wait-free. */
static inline uint64_t words_load(const void *from) {
  /* relaxed: which of several values it is makes no difference, because it is checked as copied. */
  return atomic_load_explicit((const _Atomic uint64_t *)from, memory_order_relaxed);
}

/* Copy aligned words out of shared memory, each loaded once. bytes: a multiple of 8. */
static inline void words_read(void *to, const void *from, size_t bytes) {
#pragma GCC unroll 8
  for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
    uint64_t word = words_load((const uint8_t *)from + at);
    memcpy((uint8_t *)to + at, &word, sizeof word);
  }
}

/* Copy aligned words into shared memory, each stored once. bytes: a multiple of 8. */
static inline void words_write(void *to, const void *from, size_t bytes) {
#pragma GCC unroll 8
  for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
    uint64_t word;
    memcpy(&word, (const uint8_t *)from + at, sizeof word);
    /* relaxed: a release that follows, of a position or a mark, publishes them. */
    atomic_store_explicit((_Atomic uint64_t *)((uint8_t *)to + at), word, memory_order_relaxed);
  }
}

/* words_write, with a step in its middle. */
static inline void words_write_step(const char *name, void *to, const void *from, size_t bytes) {
  size_t half = bytes / 16 * 8;
  words_write(to, from, half);
  STEP(name);
  words_write((uint8_t *)to + half, (const uint8_t *)from + half, bytes - half);
}

/* Named like the others, so that the step is found in the sources by its name. */
#define STEP_WORDS(NAME, TO, FROM, BYTES) words_write_step(NAME, TO, FROM, BYTES)

#endif

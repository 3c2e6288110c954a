/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_TESTS_INPUT_H
#define SHMLOADER_TESTS_INPUT_H

/* The bytes of one input, read from the front, or random ones; past the end everything reads as 0. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "check.h"

struct input {
  const uint8_t *next;
  size_t left;
  uint64_t *random; /* a generator's state, which comes instead of bytes; or NULL */
};

static inline bool input_ends(const struct input *input) {
  return input->left == 0 && input->random == NULL;
}

/* A number of some bytes, the lowest first. */
static inline uint64_t input_number(struct input *input, int bytes) {
  if (input->random != NULL) return random_next(input->random) >> (64 - 8 * bytes);
  uint64_t number = 0;
  for (int i = 0; i < bytes && input->left > 0; i++, input->left--) {
    number |= (uint64_t)*input->next++ << 8 * i;
  }
  return number;
}

static inline uint32_t input_byte(struct input *input) { return (uint32_t)input_number(input, 1); }

/* One byte as a number in [0, bound). */
static inline uint32_t input_below(struct input *input, uint32_t bound) {
  return input_byte(input) % bound;
}

/* One byte that stands for a number of any size: n, 2^n, or that many less than 2^64. */
static inline uint64_t input_size(struct input *input) {
  uint32_t byte = input_byte(input);
  if (byte < 128) return byte;
  if (byte < 192) return UINT64_C(1) << (byte - 128);
  return UINT64_MAX - (byte - 192);
}

#endif

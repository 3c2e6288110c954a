/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_CANARY_H
#define SHMLOADER_CANARY_H

/*
 * A canary: bytes that no code has a reason to write, after a batch that is guarded.
 *
 * Its pattern follows from ticket and slot, so an older canary, or another slot's, does not pass
 * for it. It takes no room of its own: it stands on the rest of the batch's last page, and is
 * shorter if less than CANARY_BYTES are left. So a guarded batch lies as any other does.
 */

#include "segment.h"

#define CANARY_BYTES 64

/* The length of a canary that starts at end, if that many bytes of pages exist. */
static inline uint64_t canary_bytes(uint64_t end, uint64_t pages_bytes) {
  uint64_t left = pages_bytes - end;
  return left < CANARY_BYTES ? left : CANARY_BYTES;
}

/* splitmix64, by Steele, Lea and Flood (2014): any two inputs give unlike bytes. */
static inline uint64_t canary_mix(uint64_t value) {
  value += UINT64_C(0x9e3779b97f4a7c15);
  value = (value ^ value >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  value = (value ^ value >> 27) * UINT64_C(0x94d049bb133111eb);
  return value ^ value >> 31;
}

static inline uint8_t canary_byte(uint64_t ticket, uint32_t slot, uint64_t at) {
  return (uint8_t)canary_mix(canary_mix(ticket) + slot + (at << SLOT_BITS));
}

/* Write a canary's first bytes. */
static inline void canary_write(uint8_t *to, uint64_t bytes, uint64_t ticket, uint32_t slot) {
  for (uint64_t at = 0; at < bytes; at++) to[at] = canary_byte(ticket, slot, at);
}

/* The first of these bytes that is not the canary's; bytes if it is whole. */
static inline uint64_t canary_damage(const uint8_t *from, uint64_t bytes, uint64_t ticket,
                                     uint32_t slot) {
  for (uint64_t at = 0; at < bytes; at++) {
    if (from[at] != canary_byte(ticket, slot, at)) return at;
  }
  return bytes;
}

#endif

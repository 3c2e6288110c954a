/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_PAGES_H
#define SHMLOADER_PAGES_H

#include "segment.h"

/* How well huge pages come by; private to one worker, zeros at its start. */
struct huge_supply {
  uint32_t blocks; /* made by the last call: the next may make twice as many */
  bool ended;      /* there are none, or they cost more than small ones */
  bool paused;     /* a signal interrupted this slot's pages; the owner ends the pause */
};

/*
 * Add pages to a worker's slot: [offset, offset + bytes) of the file that is mapped at base, in
 * huge pages as far as the supply goes. Returns as platform_reserve; what it does not count does
 * not exist afterwards.
 */
int64_t pages_add(int fd, uint8_t *base, uint64_t offset, uint64_t bytes, uint64_t page_bytes,
                  struct huge_supply *supply);

#endif

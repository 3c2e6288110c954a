/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_PAGES_H
#define SHMLOADER_PAGES_H

#include "policy.h"
#include "segment.h"

/* What of a slot one process has in its page tables; private to it. */
struct mapped_pages {
  uint64_t from, to; /* bytes of the slot; those below `from` were dropped */
  bool keeps;        /* its pages are small: mapping them again would cost too much */
};

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
                  const struct policy *policy, struct huge_supply *supply);

/* Begin with a slot that has `bytes` of pages: its trainer may have taken some back. */
void pages_begin(struct mapped_pages *mapped, uint64_t bytes);

/* Map the first `bytes` of a slot, which exist, into this process. */
void pages_map(struct mapped_pages *mapped, const struct policy *policy, uint8_t *start,
               uint64_t bytes);

/* Drop a slot's huge pages from this process's page tables. The file keeps them. */
void pages_drop(struct mapped_pages *mapped, uint8_t *start);

#endif

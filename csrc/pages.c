/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A worker's pages: how they come into a slot.
 *
 * Huge pages. A small page costs some 3 us when it is used first, most of it not for its bytes:
 * there is an allocation and a fault for each 4 KiB, and the trainer faults once more for each 16.
 * A huge page costs one of each for 2 MiB. Kernels make none for a memfd unless
 * shmem_enabled says so, and by default it says never. But MADV_COLLAPSE, the explicit request for
 * one range, is obeyed by all settings except "deny", as long as one page of the 2 MiB exists. So
 * one page is placed in each, and the range is collapsed before the rest is reserved.
 *
 * Huge pages can be dear, too: if memory is in fragments, others are moved to make room, and a
 * virtual machine that reports its free memory has to get each huge page back from its host, while
 * small ones are mostly recycled. So the first call makes one, the next ones some more, and a
 * worker that had to pay more than small pages cost makes no more. What counts is its own processor
 * time: the clock on the wall would mostly tell how many workers share a core.
 *
 * Key invariant: only platform_reserve says that pages exist. Collapsing is a hint in front of it:
 * whatever the kernel makes of the hint, the same bytes exist afterwards, and those that are not
 * counted are punched out again. No page is made outside of the bytes that were asked for, so
 * grants and sums mean the same as without.
 *
 * Death of a worker here leaves pages that were not counted, within its grant: see budget.c.
 */

#include "pages.h"

#include "policy.h"

static uint64_t round_down(uint64_t bytes) { return bytes / HUGE_BYTES * HUGE_BYTES; }

/* Place a page in each block of [from, to). False: the caller will meet the error again. */
static bool place_one_each(int fd, uint64_t from, uint64_t to, uint64_t page_bytes) {
  for (uint64_t block = from; block < to; block += HUGE_BYTES) {
    if (platform_reserve_piece(fd, block, page_bytes) != 0) return false;
  }
  STEP("pages: one each");
  return true;
}

/* Collapse [from, to), and note if there are no huge pages, or if they were dear. */
static void collapse(struct huge_supply *supply, uint8_t *base, uint64_t from, uint64_t to) {
  int64_t before = platform_thread_ns();
  int error = platform_collapse(base + from, to - from);
  STEP("pages: collapsed");
  supply->blocks = (uint32_t)((to - from) / HUGE_BYTES);
  /* A page that is in use for a moment, as by the trainer that places a request, is no reason. */
  bool has_none = error != 0 && error != -EAGAIN && error != -EBUSY;
  uint64_t price_ns = (uint64_t)(platform_thread_ns() - before);
  supply->ended = has_none || price_ns > supply->blocks * POLICY_HUGE_DEAR_NS;
}

/* Make huge pages of [from, to), which may have pages already, while they are cheap. */
static void make_huge(struct huge_supply *supply, int fd, uint8_t *base, uint64_t from, uint64_t to,
                      uint64_t page_bytes) {
  while (from < to && !supply->ended) {
    uint64_t blocks = supply->blocks == 0 ? 1 : min_u64(2 * supply->blocks, POLICY_HUGE_AT_ONCE);
    uint64_t end = min_u64(from + blocks * HUGE_BYTES, to);
    if (!place_one_each(fd, from, end, page_bytes)) return;
    collapse(supply, base, from, end);
    from = end;
  }
}

int64_t pages_add(int fd, uint8_t *base, uint64_t offset, uint64_t bytes, uint64_t page_bytes,
                  struct huge_supply *supply) {
  /* The first may have begun before the offset, in the same slot: slots begin on huge pages. */
  uint64_t from = round_down(offset);
  uint64_t to = round_down(offset + bytes);
  bool tries = !supply->ended && !supply->paused && page_bytes < HUGE_BYTES && from < to;
  if (tries) make_huge(supply, fd, base, from, to, page_bytes);
  int64_t added = platform_reserve(fd, offset, bytes, page_bytes);
  uint64_t counted = added > 0 ? (uint64_t)added : 0;
  if (tries && counted < bytes) {
    (void)platform_punch(fd, offset + counted, bytes - counted);
    /* While signals interrupt, pages would be made and punched again and again. */
    supply->paused = true;
  }
  return added;
}

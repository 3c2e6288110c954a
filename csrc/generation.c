/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Which copy of a process this is.
 *
 * A fork copies all private memory, so nothing in it tells a child from its parent. One page is an
 * exception: the kernel gives it to a child as zeros (MADV_WIPEONFORK). The process's number stands
 * there. A process that finds 0 takes the next number of a counter, which was copied as it stood at
 * the fork.
 *
 * Key invariant: the counter is at least the number of this process and of all its ancestors, so
 * the next number is none of theirs. Siblings may have the same, and share nothing that asks.
 *
 * No hook of a fork is needed, so the answer is right even in the child of a fork that Python does
 * not know of, and asking costs two loads. Where no such page can be had the number is the pid,
 * which the kernel may give again once that ancestor is gone.
 */

#include "generation.h"

#include "platform.h"

/* 0: not asked for so far; NO_PAGE: the kernel has none. */
static _Atomic uintptr_t page_start;
static _Atomic uint64_t newest;

enum { NO_PAGE = 1 };

static PLATFORM_COLD uintptr_t make_page(void) {
  void *page = platform_wiped_page(sizeof(uint64_t));
  uintptr_t made = page == NULL ? NO_PAGE : (uintptr_t)page;
  uintptr_t found = 0;
  /* relaxed: the page's zeros are the kernel's, not stores of this thread. */
  if (atomic_compare_exchange_strong_explicit(&page_start, &found, made, memory_order_relaxed,
                                              memory_order_relaxed)) {
    return made;
  }
  if (page != NULL) munmap(page, sizeof(uint64_t));
  return found;
}

static PLATFORM_COLD uint64_t take_number(_Atomic uint64_t *page) {
  uint64_t found = 0;
  /* relaxed: a number orders nothing, here and below. */
  uint64_t next = atomic_fetch_add_explicit(&newest, 1, memory_order_relaxed) + 1;
  bool is_first = atomic_compare_exchange_strong_explicit(page, &found, next, memory_order_relaxed,
                                                          memory_order_relaxed);
  return is_first ? next : found;
}

uint64_t generation_now(void) {
  /* relaxed: as above. */
  uintptr_t start = atomic_load_explicit(&page_start, memory_order_relaxed);
  if (start == 0) start = make_page();
  if (start == NO_PAGE) return (uint64_t)getpid();
  _Atomic uint64_t *page = (_Atomic uint64_t *)start;
  /* relaxed: as above. */
  uint64_t number = atomic_load_explicit(page, memory_order_relaxed);
  return number != 0 ? number : take_number(page);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_PLATFORM_H
#define SHMLOADER_PLATFORM_H

/*
 * csrc/platform.h for programs under relacy: its atomics, and its threads to park and wake. The
 * sources come here as C++, see sources.py; relacy.hpp makes each memory_order two arguments.
 */

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include <relacy/relacy.hpp>

using rl::mo_acq_rel, rl::mo_acquire, rl::mo_relaxed, rl::mo_release, rl::mo_seq_cst;

#define atomic_load_explicit(WORD, ...) (WORD)->load(__VA_ARGS__)
#define atomic_store_explicit(WORD, ...) (WORD)->store(__VA_ARGS__)
#define UPDATE(WORD, HOW, ...) (WORD)->rmw(rl::rmw_type_t<rl::rmw_type_##HOW>(), __VA_ARGS__)
#define atomic_fetch_add_explicit(WORD, ...) UPDATE(WORD, add, __VA_ARGS__)
#define atomic_fetch_sub_explicit(WORD, ...) UPDATE(WORD, sub, __VA_ARGS__)
#define atomic_exchange_explicit(WORD, ...) UPDATE(WORD, swap, __VA_ARGS__)
#define atomic_compare_exchange_weak_explicit(WORD, FOUND, ...) \
  compare_exchange_weak(WORD, *(FOUND), __VA_ARGS__)
#define atomic_compare_exchange_strong_explicit(WORD, FOUND, ...) \
  (WORD)->compare_exchange_strong(*(FOUND), __VA_ARGS__)

#define CACHE_LINE 8 /* relacy's words are objects, and it aligns them no better */
#define PLATFORM_COLD
#define STEP(NAME) ((void)(NAME))
#define READ_OUT(FROM, BYTES) ((void)(FROM), (void)(BYTES))
#define _Static_assert(...) /* of the layout, which is another one here */

/*
 * relacy knows no release whose failure acquires. A fence that follows a failure is a bit more: it
 * also makes earlier relaxed loads of this thread acquire.
 */
inline bool compare_exchange_weak(rl::atomic<uint32_t> *word, uint32_t &found, uint32_t wanted,
                                  rl::memory_order order, rl::debug_info where,
                                  rl::memory_order failure, rl::debug_info) {
  if (word->compare_exchange_weak(found, wanted, order, where, mo_relaxed, where)) return true;
  if (failure == mo_acquire) rl::ctx().atomic_thread_fence_acquire();
  return false;
}

/* A word that two threads must never use at once: a race for it ends the run. */
template <typename T>
class plain {
 public:
  plain() : word_(T()) {}
  operator T() const { return word_($); }
  T operator=(T value) { return word_($) = value; }
  T load(rl::memory_order, rl::debug_info) const { return word_($); }
  void store(T value, rl::memory_order, rl::debug_info) { word_($) = value; }

 private:
  rl::var<T> word_;
};

/*
 * The kernel compares and queues under a lock that a wake takes too: hence the fences, which are
 * those of relacy's own futex. No timeout, so that a wake-up that is missed is a deadlock.
 */
inline int platform_park(rl::atomic<uint32_t> *word, uint32_t expected, int64_t) {
  rl::context &threads = rl::ctx();
  threads.sched();
  threads.atomic_thread_fence_seq_cst();
  uint32_t found;
  {
    rl::preemption_disabler alone(threads);
    found = word->load(mo_acquire, $);
  }
  if (found == expected) word->wait(threads, false, false, $);
  return 0;
}

inline void platform_unpark(rl::atomic<uint32_t> *word) {
  rl::context &threads = rl::ctx();
  threads.sched();
  threads.atomic_thread_fence_seq_cst();
  word->wake(threads, 1, $);
}

/*
 * Explore a program as often as the argument says. Prints what was found, and how it came to it on
 * stderr, which allocates nothing: relacy counts allocations. 0: nothing was found.
 */
template <typename program>
int explore(char **arguments) {
  rl::test_params params;
  params.iteration_count = strtoul(arguments[1], nullptr, 10);
  params.output_stream = params.progress_stream = &std::cerr;
  bool holds = rl::simulate<program>(params);
  printf("%s\n", holds ? "nothing" : rl::test_result_str(params.test_result));
  return !holds;
}

#endif

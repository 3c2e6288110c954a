// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// What the sources of csrc/ find in place of C11's atomics and the kernel, so that relacy decides
// what each load may see. They are included in the body of a test's class, because relacy makes
// its atomics anew for each execution.

#include <relacy/relacy.hpp>

#include <stdint.h>

template <typename T> using shared = rl::atomic<T>;

// relacy's macros for the orders need its names, and bring the place in the source along, as one more argument.
using namespace rl;
#define atomic_load_explicit(PLACE, ORDER) (PLACE)->load(ORDER)
#define atomic_store_explicit(PLACE, VALUE, ORDER) (PLACE)->store(VALUE, ORDER)
#define atomic_fetch_add_explicit(PLACE, VALUE, ORDER) (PLACE)->fetch_add(VALUE, ORDER)
#define atomic_fetch_sub_explicit(PLACE, VALUE, ORDER) (PLACE)->fetch_sub(VALUE, ORDER)
#define atomic_exchange_explicit(PLACE, VALUE, ORDER) (PLACE)->exchange(VALUE, ORDER)
#define atomic_compare_exchange_weak_explicit(PLACE, FOUND, VALUE, ORDER, FAILED) \
  compare_exchange(PLACE, FOUND, VALUE, ORDER, FAILED)
#define atomic_compare_exchange_strong_explicit atomic_compare_exchange_weak_explicit

// relacy knows no failure that is stronger than the success: a fence behind a relaxed one is.
template <typename T>
bool compare_exchange(shared<T> *place, T *found, T value, rl::memory_order order,
                      rl::debug_info const &info, rl::memory_order failed,
                      rl::debug_info const &) {
  bool is_done = place->compare_exchange_strong(*found, value, order, info, rl::mo_relaxed, info);
  if (!is_done && failed == rl::mo_acquire) rl::atomic_thread_fence(rl::mo_acquire, info);
  return is_done;
}

#define STEP(NAME) ((void)(NAME))
#define READ_OUT(FROM, BYTES) ((void)(FROM), (void)(BYTES))
#define PLATFORM_COLD
#define UINT32_C(NUMBER) NUMBER##u

enum { CACHE_LINE = 64 };

// A futex: the comparison and the sleep are one step to who wakes. It has no deadline here, so a
// lost wake-up is an execution that ends with a thread asleep.
struct futex {
  rl::mutex bucket;
  rl::condition_variable sleepers;

  int park(shared<uint32_t> *word, uint32_t expected) {
    bucket.lock($);
    if (word->load(rl::mo_relaxed, $) == expected) sleepers.wait(bucket, $);
    bucket.unlock($);
    return 0;
  }

  void unpark() {
    bucket.lock($);
    sleepers.notify_all($);
    bucket.unlock($);
  }
};

// Play a test's threads in so many orders. The exit code is 0 if none was wrong.
template <typename Test> int played(unsigned long executions) {
  rl::test_params how;
  how.iteration_count = executions;
  return rl::simulate<Test>(how) ? 0 : 1;
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* Blocks and aliases, where threads_lease and Python's tests of aliases do not get. */

#include "alias.h"
#include "check.h"
#include "lease.h"

TEST(block_too_large_is_refused) {
  static const uint64_t lengths[] = {UINT64_MAX, UINT64_MAX - CACHE_LINE,
                                     UINT64_MAX - 2 * CACHE_LINE + 1};
  for (size_t i = 0; i < LENGTH(lengths); i++) CHECK(lease_block_new(lengths[i]) == NULL);
}

/* A framework that fails halfway may have called the deleter, or not. */
TEST(watched_alias_tells_its_deletion) {
  const int64_t one_element = 1;
  bool first = false, second = false;
  struct lease *lease = lease_block_new(8);
  DLDataType type = {.code = kDLFloat, .bits = 64, .lanes = 1};
  DLManagedTensorVersioned *one =
      alias_new(lease, lease_block_start(lease), type, 1, &one_element, &one_element);
  DLManagedTensorVersioned *two =
      alias_new(lease, lease_block_start(lease), type, 1, &one_element, &one_element);
  alias_watch(one, &first);
  alias_watch(two, &second);
  alias_watch(two, NULL);
  one->deleter(one);
  two->deleter(two);
  CHECK(first && !second);
  CHECK_EQUAL(1, lease_aliases(lease));
  lease_drop(lease);
}

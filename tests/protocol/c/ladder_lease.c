/* SPDX-License-Identifier: BSD-3-Clause */

/* Leases, blocks and aliases: the end runs once, with the last alias, and frees the memory. */

#include "alias.h"
#include "check.h"
#include "lease.h"

#include <stdlib.h>

static int ends;

static void count_end(struct lease *lease) {
  CHECK_EQUAL(0, lease_aliases(lease));
  ends++;
}

TEST(last_alias_ends_the_lease) {
  for (uint32_t aliases = 1; aliases <= 4; aliases++) {
    struct lease lease = {.end = count_end};
    ends = 0;
    lease_begin(&lease, aliases);
    for (uint32_t left = aliases; left > 0; left--) {
      CHECK_EQUAL(left, lease_aliases(&lease));
      CHECK_EQUAL(0, ends);
      lease_drop(&lease);
    }
    CHECK_EQUAL(1, ends);
  }
}

TEST(taken_alias_keeps_the_lease) {
  struct lease lease = {.end = count_end};
  ends = 0;
  lease_begin(&lease, 1);
  lease_take(&lease);
  lease_drop(&lease);
  CHECK_EQUAL(0, ends);
  lease_drop(&lease);
  CHECK_EQUAL(1, ends);
}

/* A lease that has ended starts again: a slot's lease does so for each batch. */
TEST(lease_begins_again) {
  struct lease lease = {.end = count_end};
  ends = 0;
  for (int round = 1; round <= 3; round++) {
    lease_begin(&lease, 2);
    lease_drop(&lease);
    lease_drop(&lease);
    CHECK_EQUAL(round, ends);
  }
}

/* A block is writable throughout, starts on a line, and its last alias frees it (or ASan tells). */
TEST(block_holds_its_bytes) {
  static const uint64_t lengths[] = {0, 1, 63, 64, 65, 4096, 1000003};
  for (size_t i = 0; i < LENGTH(lengths); i++) {
    struct lease *block = lease_block_new(lengths[i]);
    CHECK(block != NULL);
    CHECK_EQUAL(0, (uintptr_t)lease_block_start(block) % CACHE_LINE);
    memset(lease_block_start(block), 0xff, lengths[i]);
    CHECK_EQUAL(1, lease_aliases(block));
    lease_drop(block);
  }
}

TEST(block_too_large_is_refused) {
  static const uint64_t lengths[] = {UINT64_MAX, UINT64_MAX - CACHE_LINE,
                                     UINT64_MAX - 2 * CACHE_LINE + 1};
  for (size_t i = 0; i < LENGTH(lengths); i++) CHECK(lease_block_new(lengths[i]) == NULL);
}

TEST(alias_describes_and_holds_the_memory) {
  struct lease lease = {.end = count_end};
  int64_t shape[] = {2, 3}, strides[] = {3, 1};
  float data[6];
  DLDataType dtype = {.code = kDLFloat, .bits = 32, .lanes = 1};
  ends = 0;
  lease_begin(&lease, 1);
  DLManagedTensorVersioned *managed = alias_new(&lease, data, dtype, 2, shape, strides);
  CHECK(managed != NULL);
  CHECK_EQUAL(2, lease_aliases(&lease));
  shape[0] = strides[1] = 77;
  CHECK(managed->dl_tensor.data == data);
  CHECK_EQUAL(2, managed->dl_tensor.ndim);
  CHECK_EQUAL(2, managed->dl_tensor.shape[0]);
  CHECK_EQUAL(3, managed->dl_tensor.shape[1]);
  CHECK_EQUAL(3, managed->dl_tensor.strides[0]);
  CHECK_EQUAL(1, managed->dl_tensor.strides[1]);
  lease_drop(&lease);
  CHECK_EQUAL(0, ends);
  managed->deleter(managed);
  CHECK_EQUAL(1, ends);
}

/* A number has no dimension; its alias may be the one that frees a block. */
TEST(alias_of_a_scalar_frees_its_block) {
  int64_t none;
  struct lease *block = lease_block_new(8);
  DLDataType dtype = {.code = kDLInt, .bits = 64, .lanes = 1};
  DLManagedTensorVersioned *managed =
      alias_new(block, lease_block_start(block), dtype, 0, &none, &none);
  CHECK(managed != NULL);
  lease_drop(block);
  memset(managed->dl_tensor.data, 1, 8);
  managed->deleter(managed);
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

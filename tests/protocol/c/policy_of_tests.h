/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_TESTS_POLICY_OF_TESTS_H
#define SHMLOADER_TESTS_POLICY_OF_TESTS_H

#include "policy.h"

/* The policy of these tests, which need no Python. A test compares it with memory/policy.py. */
static const struct policy policy_of_tests = {
    .retired_part = 2,
    .few_spares_part = 8,
    .few_spares_min = 2,
    .comebacks_to_grow = 2,
    .late_rounds = 4,
    .few_pages_bytes = UINT64_C(32) << 20,
    .waiting_part = 4,
    .given_ahead_part = 8,
    .window_batches = 32,
    .judged_batches = 16,
    .smaller_part = 4,
    .steady_part = 2,
    .mean_part = 8,
    .grown_part = 8,
    .piece_max_bytes = UINT64_C(32) << 20,
    .reserve_bytes = UINT64_C(32) << 20,
    .private_bytes = UINT64_C(8) << 20,
    .shares_each = 2,
    .huge_at_once = 4,
    .huge_dear_ns = 1000000,
    .cache_piece_max_bytes = UINT64_C(32) << 20,
    .cache_pieces_part = 64,
    .moved_part = 64,
    .moved_of_last_part = 2,
    .shared_bytes = UINT64_C(8) << 10,
    .look_from_bytes = UINT64_C(64) << 20,
    .look_ns = 250000000,
    .children_seldom_ns = 50000000,
    .children_often_ns = 1000000,
    .look_again_ns = 20000000,
    .hint_ns = 20000000,
};

#endif

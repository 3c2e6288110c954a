/* SPDX-License-Identifier: BSD-3-Clause */

/* Page reservation against a file system that follows a script: full, or interrupted. */

#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>

/* What the file system has, in units of 1 MiB; calls before the one that fails, and how it does. */
enum { FILE_UNITS = 512 };
static bool exists[FILE_UNITS];
static int calls_left, failure;
static uint64_t longest_units = FILE_UNITS; /* a longer call is interrupted */
static bool refuses; /* as a filter of system calls does */

static void set_exists(int64_t offset, int64_t bytes, bool value) {
  CHECK(offset % (1 << 20) == 0 && bytes % (1 << 20) == 0 && bytes > 0);
  for (int64_t unit = offset >> 20; unit < (offset + bytes) >> 20; unit++) {
    CHECK(unit < FILE_UNITS);
    exists[unit] = value;
  }
}

static int scripted_fallocate(int fd, int mode, int64_t offset, int64_t bytes) {
  CHECK_EQUAL(5, fd);
  if (refuses) {
    errno = ENOSYS;
    return -1;
  }
  bool makes = mode == 0;
  bool is_long = makes && (uint64_t)bytes > longest_units << 20;
  if (is_long || (makes && calls_left-- == 0)) {
    errno = is_long ? EINTR : failure;
    return -1;
  }
  set_exists(offset, bytes, makes);
  return 0;
}

static int64_t scripted_pwrite(int fd, const void *from, size_t bytes, int64_t offset) {
  CHECK_EQUAL(5, fd);
  CHECK(refuses && bytes == 1 && *(const char *)from == 0);
  if (calls_left-- == 0) {
    errno = failure;
    return -1;
  }
  set_exists(offset, 1 << 20, true);
  return 1;
}

#define fallocate scripted_fallocate
#define pwrite scripted_pwrite
#include "platform.h"
#undef fallocate
#undef pwrite

static const uint64_t mib = UINT64_C(1) << 20;

static void script(int calls, int error) {
  memset(exists, 0, sizeof exists);
  calls_left = calls;
  failure = error;
}

static int count_existing(int first, int end) {
  int count = 0;
  for (int unit = first; unit < end; unit++) count += exists[unit];
  return count;
}

TEST(reserving_makes_every_piece) {
  static const int lengths[] = {0, 1, 63, 64, 65, 200};
  for (size_t i = 0; i < LENGTH(lengths); i++) {
    script(1000, 0);
    uint64_t bytes = (uint64_t)lengths[i] * mib;
    CHECK_EQUAL(bytes, platform_reserve(5, 3 * mib, bytes, mib));
    CHECK_EQUAL(lengths[i], count_existing(3, 3 + lengths[i]));
    CHECK_EQUAL(lengths[i], count_existing(0, FILE_UNITS));
  }
}

/* Pieces that were made before the file was full would not be counted. */
TEST(full_file_leaves_nothing) {
  for (int calls = 0; calls < 4; calls++) {
    script(calls, ENOSPC);
    CHECK_EQUAL(-ENOSPC, platform_reserve(5, 3 * mib, 200 * mib, mib));
    CHECK_EQUAL(0, count_existing(0, FILE_UNITS));
  }
}

/* An interrupted caller tries again, so finished pieces stay, and are told. */
TEST(interrupted_pieces_stay) {
  script(2, EINTR);
  CHECK_EQUAL(128 * mib, platform_reserve(5, 3 * mib, 200 * mib, mib));
  CHECK_EQUAL(128, count_existing(3, 131));
  CHECK_EQUAL(128, count_existing(0, FILE_UNITS));
}

/* The first piece is interrupted: half of it comes, so that the caller gets on. */
TEST(interrupted_piece_is_halved) {
  script(0, EINTR);
  CHECK_EQUAL(32 * mib, platform_reserve(5, 3 * mib, 200 * mib, mib));
  CHECK_EQUAL(32, count_existing(3, 35));
  CHECK_EQUAL(32, count_existing(0, FILE_UNITS));
}

/* Not even one page comes through: the caller's handlers run, and it decides. */
TEST(interrupted_page_is_told) {
  script(-1, EINTR);
  longest_units = 0;
  CHECK_EQUAL(0, platform_reserve(5, 3 * mib, 200 * mib, mib));
  longest_units = FILE_UNITS;
  CHECK_EQUAL(0, count_existing(0, FILE_UNITS));
}

/* The rest of an interrupted call finds the file full: nothing of that call is left. */
TEST(full_file_after_an_interrupt_leaves_what_was_told) {
  script(1, EINTR);
  CHECK_EQUAL(64 * mib, platform_reserve(5, 3 * mib, 200 * mib, mib));
  script(1, ENOSPC);
  CHECK_EQUAL(-ENOSPC, platform_reserve(5, 67 * mib, 136 * mib, mib));
  CHECK_EQUAL(0, count_existing(0, FILE_UNITS));
}

/* Without fallocate each page comes by a write into it, and a full file is an error as well. */
TEST(refused_calls_are_replaced_by_writes) {
  refuses = true;
  script(1000, 0);
  CHECK_EQUAL(200 * mib, platform_reserve(5, 3 * mib, 200 * mib, mib));
  CHECK_EQUAL(200, count_existing(3, 203));
  CHECK_EQUAL(200, count_existing(0, FILE_UNITS));
  script(70, ENOSPC);
  CHECK_EQUAL(-ENOSPC, platform_reserve(5, 3 * mib, 200 * mib, mib));
  refuses = false;
}

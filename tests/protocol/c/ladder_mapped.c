/* SPDX-License-Identifier: BSD-3-Clause */

/* Files of records, mapped: writes stay here, the last alias unmaps, and limits are heard. */

#include "check.h"
#include "mapped.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { BYTES = 10000 };

static int sealed_file(void) {
  int fd = memfd_create("mapped", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  CHECK(fd >= 0);
  for (int i = 0; i < BYTES; i++) CHECK_EQUAL(1, write(fd, "r", 1));
  CHECK_EQUAL(0, fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW));
  return fd;
}

TEST(file_is_read_from_end_to_end) {
  int fd = sealed_file();
  struct mapped *mapped = NULL;
  CHECK_EQUAL(0, mapped_open(fd, BYTES, &mapped));
  CHECK(mapped->is_writable);
  for (int i = 0; i < BYTES; i++) CHECK_EQUAL('r', mapped->base[i]);
  lease_drop(&mapped->lease);
  close(fd);
}

TEST(write_is_seen_here_alone) {
  int fd = sealed_file();
  struct mapped *one = NULL, *other = NULL;
  CHECK_EQUAL(0, mapped_open(fd, BYTES, &one));
  CHECK_EQUAL(0, mapped_open(fd, BYTES, &other));
  one->base[5000] = 'w';
  char found = 0;
  CHECK_EQUAL(1, pread(fd, &found, 1, 5000));
  CHECK_EQUAL('r', found);
  CHECK_EQUAL('r', other->base[5000]);
  CHECK_EQUAL('w', one->base[5000]);
  lease_drop(&one->lease);
  lease_drop(&other->lease);
  close(fd);
}

TEST(last_alias_unmaps) {
  int fd = sealed_file();
  struct mapped *mapped = NULL;
  CHECK_EQUAL(0, mapped_open(fd, BYTES, &mapped));
  close(fd);
  uint8_t *base = mapped->base;
  lease_take(&mapped->lease);
  lease_drop(&mapped->lease);
  CHECK_EQUAL('r', base[0]);
  lease_drop(&mapped->lease);
  /* An address that is not mapped is ENOMEM to msync. */
  CHECK_EQUAL(-1, msync(base, 1, MS_ASYNC));
  CHECK_EQUAL(ENOMEM, errno);
}

TEST(nothing_can_be_mapped_of_nothing) {
  int fd = sealed_file();
  struct mapped *mapped = NULL;
  CHECK_EQUAL(-EINVAL, mapped_open(fd, 0, &mapped));
  CHECK_EQUAL(-EBADF, mapped_open(-1, BYTES, &mapped));
  CHECK(mapped == NULL);
  close(fd);
}

/* In a child, because a limit cannot always be raised again. */
TEST(limit_of_data_leaves_reading) {
  int fd = sealed_file();
  pid_t child = fork();
  if (child == 0) {
    struct mapped *mapped = malloc(4096); /* the heap has room for the next one */
    free(mapped);
    struct rlimit limit = {.rlim_cur = 1, .rlim_max = RLIM_INFINITY};
    if (setrlimit(RLIMIT_DATA, &limit) != 0) _exit(1);
    if (mapped_open(fd, BYTES, &mapped) != 0) _exit(2);
    _exit(mapped->is_writable || mapped->base[BYTES - 1] != 'r' ? 3 : 0);
  }
  check_ends_well(child);
  close(fd);
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* Files of records, mapped: the last alias unmaps. Python's tests of record files write and read. */

#include "check.h"
#include "lease.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BYTES = 10000 };

static int sealed_file(void) {
  int fd = memfd_create("mapped", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  CHECK(fd >= 0);
  for (int i = 0; i < BYTES; i++) CHECK_EQUAL(1, write(fd, "r", 1));
  CHECK_EQUAL(0, fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW));
  return fd;
}

TEST(last_alias_unmaps) {
  int fd = sealed_file();
  struct mapped *mapped = NULL;
  CHECK_EQUAL(0, lease_map_file(fd, BYTES, &mapped));
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
  CHECK_EQUAL(-EINVAL, lease_map_file(fd, 0, &mapped));
  CHECK_EQUAL(-EBADF, lease_map_file(-1, BYTES, &mapped));
  CHECK(mapped == NULL);
  close(fd);
}

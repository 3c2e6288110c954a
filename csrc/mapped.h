/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_MAPPED_H
#define SHMLOADER_MAPPED_H

#include "lease.h"

/*
 * A file that is not written to any more, mapped into this process: a list of records. Writes
 * through the mapping are this process's own. The lease comes first: its last alias unmaps.
 */
struct mapped {
  struct lease lease;
  uint8_t *base;
  uint64_t bytes;
  bool is_writable; /* false: a limit of the process or the machine allows reading alone */
};

/*
 * Map a file of bytes, at least 1, behind a lease with one alias. 0 or -errno. One thread at a
 * time; makes system calls, and never waits for a peer.
 */
int mapped_open(int fd, uint64_t bytes, struct mapped **made);

#endif

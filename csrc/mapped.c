/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A list of records in this process. Its file is sealed, or lies on a disk, and any number of
 * processes map it. Nobody writes to the file, so there is nothing to synchronize and no state in
 * it that a death could leave half done.
 *
 * The mapping is private and writable, because frameworks write to what they are given: with a
 * read-only one, `torch.from_numpy(x).add_()` is a SIGSEGV. The kernel copies a page that is
 * written to, for this process alone. All other pages are the file's own, in all processes.
 *
 * Such a mapping counts as memory that may be needed, all of it. MAP_NORESERVE takes that back, and
 * a file may be longer than the memory. Where the kernel does not listen (vm.overcommit_memory = 2,
 * `ulimit -d`), the mapping is for reading alone, and leaves have to be copied out of it.
 */

#include "mapped.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

static void mapped_end(struct lease *lease) {
  struct mapped *self = lease->owner;
  munmap(self->base, (size_t)self->bytes);
  free(self);
}

int mapped_open(int fd, uint64_t bytes, struct mapped **made) {
  if (bytes == 0 || bytes > SIZE_MAX) return -EINVAL;
  struct mapped *self = malloc(sizeof *self);
  if (self == NULL) return -ENOMEM;
  size_t length = (size_t)bytes;
  self->is_writable = true;
  void *base = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
  if (base == MAP_FAILED && (errno == ENOMEM || errno == EAGAIN)) {
    self->is_writable = false;
    base = mmap(NULL, length, PROT_READ, MAP_SHARED, fd, 0);
  }
  if (base == MAP_FAILED) {
    int error = errno;
    free(self);
    return -error;
  }
  self->base = base;
  self->bytes = bytes;
  self->lease.slot = 0;
  self->lease.owner = self;
  self->lease.end = mapped_end;
  lease_begin(&self->lease, 1);
  *made = self;
  return 0;
}

/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Memory of this process alone behind a lease of its own: blocks, and files that are mapped.
 *
 * Blocks are ordinary private memory. What leaves a slot lives in blocks, one for each
 * part that can be kept alone. The lease stands in the first cache line of the allocation, and the
 * last alias frees the whole. Its owner is the extent in which the block is entered.
 *
 * A block is new memory, and the faults of its pages cost more than the copy into them. So a large
 * one asks for huge pages: 38.5 MB take 6.6 ms with them and 20 ms without.
 *
 * A file that is mapped is a list of records. It is sealed, or lies on a disk, and any number of
 * processes map it. Nobody writes to the file, so there is nothing to synchronize and no state in
 * it that a death could leave half done. The mapping is private and writable, because frameworks
 * write to what they are given: with a read-only one, `torch.from_numpy(x).add_()` is a SIGSEGV.
 * The kernel copies a page that is written to, for this process alone. All other pages are the
 * file's own, in all processes.
 *
 * Such a mapping counts as memory that may be needed, all of it. MAP_NORESERVE takes that back, and
 * a file may be longer than the memory. Where the kernel does not listen (vm.overcommit_memory = 2,
 * `ulimit -d`), the mapping is for reading alone, and leaves have to be copied out of it.
 */

#include "lease.h"

#include <stdlib.h>

#include "extent.h"

static void block_end(struct lease *lease) {
  extent_leave(lease->owner);
  free(lease);
}

struct lease *lease_block_new(uint64_t bytes) {
  if (bytes > SIZE_MAX - 2 * CACHE_LINE) return NULL;
  bool is_large = bytes >= HUGE_BYTES;
  size_t length = ((size_t)(bytes + CACHE_LINE - 1) / CACHE_LINE + 1) * CACHE_LINE;
  struct lease *lease = NULL;
  if (posix_memalign((void **)&lease, is_large ? HUGE_BYTES : CACHE_LINE, length) != 0) return NULL;
  if (is_large) platform_hugify(lease, length);
  lease->owner = bytes > 0 ? extent_enter(lease_block_start(lease), bytes) : NULL;
  if (bytes > 0 && lease->owner == NULL) {
    free(lease);
    return NULL;
  }
  lease->slot = 0;
  lease->end = block_end;
  lease_begin(lease, 1);
  return lease;
}

void *lease_block_start(struct lease *lease) { return (uint8_t *)lease + CACHE_LINE; }

static void mapped_end(struct lease *lease) {
  struct mapped *self = lease->owner;
  munmap(self->base, (size_t)self->bytes);
  free(self);
}

int lease_map_file(int fd, uint64_t bytes, struct mapped **made) {
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

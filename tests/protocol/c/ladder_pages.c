/* SPDX-License-Identifier: BSD-3-Clause */

/* A worker's pages: what exists is what was counted. */

#include "pages.h"

#include <sys/resource.h>

#include "check.h"

enum { SLOT_BLOCKS = 4 };

static const uint64_t slot_bytes = SLOT_BLOCKS * HUGE_BYTES;

struct file {
  int fd;
  uint8_t *base;
};

static struct file file_open(void) {
  int fd = memfd_create("pages", MFD_CLOEXEC);
  CHECK(fd >= 0 && ftruncate(fd, (off_t)(2 * slot_bytes)) == 0);
  void *base = mmap(NULL, 2 * slot_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(base != MAP_FAILED);
  return (struct file){.fd = fd, .base = base};
}

static void file_close(const struct file *file) {
  munmap(file->base, 2 * slot_bytes);
  close(file->fd);
}

static uint64_t existing(const struct file *file) {
  struct stat found;
  CHECK_EQUAL(0, fstat(file->fd, &found));
  return (uint64_t)found.st_blocks * 512;
}

static uint64_t page(void) { return (uint64_t)sysconf(_SC_PAGESIZE); }

static int64_t add(const struct file *file, uint64_t offset, uint64_t bytes,
                   struct huge_supply *supply) {
  return pages_add(file->fd, file->base, offset, bytes, page(), supply);
}

/* Whatever the kernel makes of the hint, the bytes asked for exist, and no others. */
TEST(pages_exist_as_they_are_counted) {
  const uint64_t ends[] = {1, 511, 512, 513, 1024, 1500, 2047, 2048};
  for (int ended = 0; ended < 2; ended++) {
    struct file file = file_open();
    struct huge_supply supply = {.ended = ended};
    uint64_t done = 0;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
      uint64_t bytes = ends[i] * page() - done;
      CHECK_EQUAL(bytes, add(&file, slot_bytes + done, bytes, &supply));
      done += bytes;
      CHECK_EQUAL(done, existing(&file));
    }
    file_close(&file);
  }
}

/* The file's length ends in the middle: nothing of the call is left, in huge pages or small. */
TEST(refused_pages_are_gone) {
  struct file file = file_open();
  struct huge_supply supply = {.blocks = 0};
  struct rlimit whole;
  CHECK_EQUAL(0, getrlimit(RLIMIT_FSIZE, &whole));
  signal(SIGXFSZ, SIG_IGN);
  /* The file may not even grow to where the slot ends. */
  CHECK_EQUAL(0, ftruncate(file.fd, (off_t)(slot_bytes + HUGE_BYTES)));
  struct rlimit short_one = {.rlim_cur = slot_bytes + HUGE_BYTES, .rlim_max = whole.rlim_max};
  CHECK_EQUAL(0, setrlimit(RLIMIT_FSIZE, &short_one));
  CHECK_EQUAL(-EFBIG, add(&file, slot_bytes, slot_bytes, &supply));
  CHECK_EQUAL(0, existing(&file));
  CHECK_EQUAL(0, setrlimit(RLIMIT_FSIZE, &whole));
  file_close(&file);
}

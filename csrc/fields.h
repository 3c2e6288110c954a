/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_FIELDS_H
#define SHMLOADER_FIELDS_H

#include <stddef.h>
#include <stdint.h>

/* One field of what viewers may read; formats are numpy's. */
struct view_field {
  const char *part; /* the struct */
  size_t part_bytes;
  const char *name;
  const char *format;
  size_t offset;
};

extern const struct view_field view_fields[];
extern const size_t view_fields_count;

/* Returns a checksum of the table: equal ones have equal layouts. Any process; wait-free. */
uint32_t view_layout_sum(void);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#include "check.h"

#include <stdarg.h>
#include <stdlib.h>

/*
 * The checks of tests/protocol/c for a fuzzer: a failure aborts, because a fuzzer keeps the input
 * of a process that aborts, and not of one that exits.
 */

double check_seconds;
uint64_t check_seed;

void check_failed(const char *file, int line, const char *expression, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "FAILED %s:%d: %s:", file, line, expression);
  vfprintf(stderr, format, arguments);
  fprintf(stderr, "\n");
  va_end(arguments);
  abort();
}

void check_equal(const char *file, int line, const char *actual_text, int64_t expected,
                 int64_t actual) {
  if (expected == actual) return;
  check_failed(file, line, actual_text, " expected %" PRId64 ", is %" PRId64, expected, actual);
}

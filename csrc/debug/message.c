/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The guard (guard.c) is the one part of csrc/ that speaks to people by itself: what it finds is a
 * fault of some native code, found on any thread, perhaps inside a signal handler. So a line is put
 * together on the stack: of strings and numbers, vsnprintf() takes no lock and no memory.
 */

#include "message.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

void message_say(const char *format, ...) {
  char line[MESSAGE_BYTES];
  va_list values;
  va_start(values, format);
  int length = snprintf(line, sizeof line, "shmloader: ");
  length += vsnprintf(line + length, sizeof line - (size_t)length, format, values);
  va_end(values);
  if (length >= MESSAGE_BYTES) length = MESSAGE_BYTES - 1;
  line[length] = '\n';
  /* A failure cannot be reported anywhere. */
  ssize_t written = write(STDERR_FILENO, line, (size_t)length + 1);
  (void)written;
}

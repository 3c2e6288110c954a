/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The guard (guard.c) is the one part of csrc/ that speaks to people by itself: what it finds is a
 * fault of some native code, found on whatever thread, perhaps inside a handler of signals, where
 * neither stdio nor the heap may be used. So a line is put together on the stack, by hand.
 */

#include "message.h"

#include <stdlib.h>

struct line line_begin(void) {
  struct line line;
  line.length = 0;
  line_text(&line, "shmloader: ");
  return line;
}

void line_text(struct line *line, const char *text) {
  /* The last byte is the newline's. */
  size_t room = sizeof line->text - 1 - line->length;
  size_t length = strlen(text);
  if (length > room) length = room;
  memcpy(line->text + line->length, text, length);
  line->length += length;
}

void line_number(struct line *line, uint64_t number) {
  char digits[21];
  size_t at = sizeof digits - 1;
  digits[at] = 0;
  do {
    digits[--at] = (char)('0' + number % 10);
    number /= 10;
  } while (number > 0);
  line_text(line, digits + at);
}

void line_seconds(struct line *line, int64_t ns) {
  uint64_t ms = ns > 0 ? (uint64_t)ns / 1000000 : 0;
  const char digits[] = {(char)('0' + ms / 100 % 10), (char)('0' + ms / 10 % 10),
                         (char)('0' + ms % 10), 0};
  line_number(line, ms / 1000);
  line_text(line, ".");
  line_text(line, digits);
  line_text(line, " s");
}

void line_write(struct line *line) {
  line->text[line->length] = '\n';
  /* Nobody could be told of a failure. */
  ssize_t written = write(STDERR_FILENO, line->text, line->length + 1);
  (void)written;
}

void line_abort(struct line *line) {
  line_write(line);
  abort();
}

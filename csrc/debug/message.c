/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The guard (guard.c) is the one part of csrc/ that speaks to people by itself: what it finds is a
 * fault of some native code, found on any thread, perhaps inside a signal handler, where neither
 * stdio nor the heap may be used. So a line is put together on the stack, by hand.
 */

#include "message.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct line {
  char text[MESSAGE_BYTES];
  size_t length;
};

static void add(struct line *line, const char *text, size_t length) {
  /* The last byte is the newline's. */
  size_t room = sizeof line->text - 1 - line->length;
  if (length > room) length = room;
  memcpy(line->text + line->length, text, length);
  line->length += length;
}

static void add_number(struct line *line, uint64_t number, size_t width) {
  char digits[20];
  size_t at = sizeof digits;
  do {
    digits[--at] = (char)('0' + number % 10);
    number /= 10;
  } while (number > 0 || sizeof digits - at < width);
  add(line, digits + at, sizeof digits - at);
}

static void write_line(const char *format, va_list values) {
  struct line line = {.length = 0};
  add(&line, "shmloader: ", strlen("shmloader: "));
  while (*format != 0) {
    size_t plain = strcspn(format, "%");
    add(&line, format, plain);
    format += plain;
    if (format[0] == '%' && format[1] == 's') {
      const char *text = va_arg(values, const char *);
      add(&line, text, strlen(text));
      format += 2;
    } else if (format[0] == '%') {
      size_t width = format[1] == '0' ? (size_t)(format[2] - '0') : 0;
      add_number(&line, va_arg(values, uint64_t), width);
      format += strcspn(format, "u") + 1;
    }
  }
  line.text[line.length] = '\n';
  /* A failure cannot be reported anywhere. */
  ssize_t written = write(STDERR_FILENO, line.text, line.length + 1);
  (void)written;
}

void message_say(const char *format, ...) {
  va_list values;
  va_start(values, format);
  write_line(format, values);
  va_end(values);
}

void message_abort(const char *format, ...) {
  va_list values;
  va_start(values, format);
  write_line(format, values);
  va_end(values);
  abort();
}

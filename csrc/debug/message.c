/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The guard (guard.c) is the one part of csrc/ that speaks to people by itself: what it finds is a
 * fault of some native code, found on any thread, perhaps inside a signal handler, where neither
 * stdio nor the heap may be used. So a message is put together on the stack, by hand.
 */

#include "message.h"

#include <stdlib.h>

struct message message_begin(void) {
  struct message message;
  message.length = 0;
  message_text(&message, "shmloader: ");
  return message;
}

void message_text(struct message *message, const char *text) {
  /* The last byte is the newline's. */
  size_t room = sizeof message->text - 1 - message->length;
  size_t length = strlen(text);
  if (length > room) length = room;
  memcpy(message->text + message->length, text, length);
  message->length += length;
}

void message_number(struct message *message, uint64_t number) {
  char digits[21];
  size_t at = sizeof digits - 1;
  digits[at] = 0;
  do {
    digits[--at] = (char)('0' + number % 10);
    number /= 10;
  } while (number > 0);
  message_text(message, digits + at);
}

void message_seconds(struct message *message, int64_t ns) {
  uint64_t ms = ns > 0 ? (uint64_t)ns / 1000000 : 0;
  const char digits[] = {(char)('0' + ms / 100 % 10), (char)('0' + ms / 10 % 10),
                         (char)('0' + ms % 10), 0};
  message_number(message, ms / 1000);
  message_text(message, ".");
  message_text(message, digits);
  message_text(message, " s");
}

void message_write(struct message *message) {
  message->text[message->length] = '\n';
  /* A failure cannot be reported anywhere. */
  ssize_t written = write(STDERR_FILENO, message->text, message->length + 1);
  (void)written;
}

void message_abort(struct message *message) {
  message_write(message);
  abort();
}

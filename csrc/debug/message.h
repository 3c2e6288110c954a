/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_MESSAGE_H
#define SHMLOADER_MESSAGE_H

#include "platform.h"

/*
 * A message is one line for people, made without allocating, so that a signal handler may make it
 * too. What does not fit is cut off. Any thread; each function touches its message alone.
 */
struct message {
  char text[512];
  size_t length;
};

/* A message that begins with the project's name. */
struct message message_begin(void);

void message_text(struct message *message, const char *text);
void message_number(struct message *message, uint64_t number);

/* A length of time in seconds, to the millisecond. */
void message_seconds(struct message *message, int64_t ns);

/* Write it to stderr with one call, so that it stays whole beside those of other processes. */
void message_write(struct message *message);

/* The same, and end the process with SIGABRT, for a debugger or a core dump. */
_Noreturn void message_abort(struct message *message);

#endif

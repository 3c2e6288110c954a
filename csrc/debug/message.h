/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_MESSAGE_H
#define SHMLOADER_MESSAGE_H

#include "platform.h"

/*
 * One line for people, made without allocating, so that a handler of signals may make it too. What
 * does not fit is cut off. Any thread; each function touches its line alone.
 */
struct line {
  char text[512];
  size_t length;
};

/* A line that begins with the project's name. */
struct line line_begin(void);

void line_text(struct line *line, const char *text);
void line_number(struct line *line, uint64_t number);

/* A length of time in seconds, to the millisecond. */
void line_seconds(struct line *line, int64_t ns);

/* Write the line to stderr by one call, so that it stays whole beside those of other processes. */
void line_write(struct line *line);

/* The same, and end the process by SIGABRT, for a debugger and for the core it may leave. */
_Noreturn void line_abort(struct line *line);

#endif

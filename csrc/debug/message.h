/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_MESSAGE_H
#define SHMLOADER_MESSAGE_H

#include <inttypes.h>
#include <stdlib.h>

/*
 * Write one line to stderr, with one call, so that it stays whole beside those of other processes.
 * The format is printf's, of strings and numbers alone. What does not fit into MESSAGE_BYTES is cut
 * off. Any thread; a signal handler may call it too.
 */
void message_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The same, and end the process with SIGABRT, for a debugger or a core dump. */
#define message_abort(...) (message_say(__VA_ARGS__), abort())

#define MESSAGE_BYTES 512 /* of a line, its end included */

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_WATCH_H
#define SHMLOADER_WATCH_H

/*
 * End this process within a second of the end of process pid, even if this process is blocked.
 * Starts a thread that never returns. 0, or -errno: no thread.
 */
int watch_start(int pid);

/* End this process with status 0 in so many ms, unless that is lifted before. 0, or -errno. */
int watch_limit(int ms);
void watch_lift_limit(void);

#endif

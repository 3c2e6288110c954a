/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_DRIVER_H
#define SHMLOADER_DRIVER_H

#include "platform.h"

/*
 * CUDA's driver, of which page-locked slots need three things: to lock memory where it lies, to
 * know when all copies that were issued so far are done, and not to disturb a graph's capture.
 *
 * It is found by dlopen, so nothing of CUDA is needed to build, and any library with the same
 * functions will do: tests/protocol/c/standin_driver.c has them. No forked child calls any of it.
 *
 * What returns an int returns 0, an error of the driver (> 0), or -errno.
 */

#define DRIVER_DEVICES 16 /* with more, slots are not page-locked */

/* What the driver may answer, beside 0. */
enum driver_error {
  DRIVER_OTHER_CONTEXT = 201,   /* a context that is gone, */
  DRIVER_OTHER_HANDLE = 400,    /* with it the handles that were made in it */
  DRIVER_NOT_READY = 600,
  DRIVER_CONTEXT_GONE = 709,
  DRIVER_NOT_LOCKED = 713,      /* as after a context's end */
  DRIVER_CAPTURING = 900,       /* a capture was met, and is spoilt */
};

/* Events that are done when all that was issued before on the devices of this process is done. */
struct fence {
  void *events[DRIVER_DEVICES]; /* NULL: that device was not in use */
};

/*
 * Find the driver by the library's name, once for the process: later calls return what the first
 * one did. NULL: it is this program.
 * -ENOENT: there is no such library; -ENOSYS: it lacks a function, as before CUDA 12.5; -ENODEV: it
 * knows no device; -E2BIG: it knows too many.
 */
int driver_open(const char *library);

/*
 * True if slots may be page-locked: the driver was found, and no capture was met that had not been
 * announced. Any thread; wait-free.
 */
bool driver_is_usable(void);

/* True once such a capture was met. */
bool driver_met_capture(void);

/*
 * A capture is about to begin, or has ended: in between nothing is recorded and nothing is locked.
 * The first one waits for what another thread is locking. Any thread.
 */
void driver_capture_begins(void);
void driver_capture_ends(void);

/* True between the two, for some capture. Any thread; wait-free. */
bool driver_is_capturing(void);

/*
 * Have calls of this thread be none that a capture minds (mode: DRIVER_RELAXED), or as they were
 * (mode: what that returned). Any thread, if the driver is there.
 */
enum { DRIVER_RELAXED = 2 /* CU_STREAM_CAPTURE_MODE_RELAXED */ };
int driver_exchange_mode(int mode);

/*
 * Page-lock memory for all devices; undo that, if a context's end has not. They take some ms.
 * -EBUSY: a graph is captured, or, to undo it, another thread is locking.
 */
int driver_lock(void *start, uint64_t bytes);
int driver_unlock(void *start);

/*
 * Record an event on each device whose primary context is active, over all of its streams.
 * -EBUSY: a graph is captured, or memory is being locked. Unless it returns 0, there is no fence.
 */
int driver_record(struct fence *fence);

/*
 * Ask a fence; its events are free for the next one when it returns 0. DRIVER_NOT_READY: copies are
 * under way, or another thread is locking. Another error: whether the copies ended is not known.
 */
int driver_ask(struct fence *fence);

/* True if an error says that a device's context is gone, and with it all that it did. */
static inline bool driver_lost_context(int error) {
  return error == DRIVER_CONTEXT_GONE || error == DRIVER_OTHER_CONTEXT ||
         error == DRIVER_OTHER_HANDLE;
}

#endif

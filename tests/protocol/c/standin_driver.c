/*
 * A driver of CUDA that is none: the functions that csrc/driver.c looks for, over copies by memmove.
 *
 * A copy is done when a test says so. Events, locks and captures behave as the real ones do as far
 * as is known from trials on a GPU: a record over a context in which a graph is captured fails and
 * spoils the capture, and memory is registered once at an address.
 */

#include "standin_driver.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum {
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_READY = 600,
  CONTEXT_IS_DESTROYED = 709,
  ALREADY_REGISTERED = 712,
  NOT_REGISTERED = 713,
  CAPTURE_UNSUPPORTED = 900,
};

enum { COPIES = 1 << 16, EVENTS = 1 << 12, LOCKS = 1 << 10 };

struct copy {
  char *to;
  const char *from;
  size_t bytes;
  int is_done;
};

struct event {
  int is_made;
  int is_recorded;
  int64_t behind; /* copies */
};

struct lock {
  char *start;
  size_t bytes;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct copy copies[COPIES];
static int64_t copy_count;
static struct event events[EVENTS];
static struct lock locks[LOCKS];
static int contexts; /* depth of those that were pushed */

/* What a test sets. */
EXPORT int standin_capturing;       /* a graph is captured in this context */
EXPORT int standin_is_late = 1;     /* copies are done only by standin_finish */
EXPORT int standin_prompt;          /* and those before an event when it is asked */
EXPORT int standin_never;           /* events never are */
EXPORT int standin_refuses;         /* the error of cuMemHostRegister; 0: none */
EXPORT int standin_query_fails;     /* the error of cuEventQuery; 0: none */
EXPORT int standin_record_fails;    /* the error of cuCtxRecordEvent; 0: none */
EXPORT int standin_is_active = 1;   /* the primary context is */

/* What it reads. */
EXPORT int standin_spoilt;          /* captures */
EXPORT int standin_registered;      /* memory that is registered now, in pieces */
EXPORT int standin_ever_registered;
EXPORT int standin_records;
EXPORT int standin_events;          /* that exist */
EXPORT int standin_faults;          /* what must not have happened: one bit each, below */

enum {
  FAULT_UNREGISTERED_UNDER_A_COPY = 1,
  FAULT_COPY_FROM_UNREGISTERED = 2,
  FAULT_NO_CONTEXT = 4,
  FAULT_REGISTERED_IN_A_CAPTURE = 8,
  FAULT_BAD_EVENT = 16,
};

static int overlaps(const struct lock *lock, const char *start, size_t bytes) {
  return lock->start != NULL && lock->start < start + bytes && start < lock->start + lock->bytes;
}

static int holds(const char *start, size_t bytes) {
  for (int i = 0; i < LOCKS; i++) {
    if (locks[i].start != NULL && locks[i].start <= start &&
        start + bytes <= locks[i].start + locks[i].bytes) {
      return 1;
    }
  }
  return 0;
}

/* True if all of it is registered as one piece, as torch's is_pinned() asks. */
EXPORT int standin_holds(const char *start, size_t bytes) {
  pthread_mutex_lock(&mutex);
  int found = holds(start, bytes);
  pthread_mutex_unlock(&mutex);
  return found;
}

static void run(struct copy *copy) {
  if (!copy->is_done) memmove(copy->to, copy->from, copy->bytes);
  copy->is_done = 1;
}

/* Begin a copy to the device, of whatever stream. */
EXPORT void standin_copy(char *to, const char *from, size_t bytes) {
  pthread_mutex_lock(&mutex);
  if (bytes > 0 && !holds(from, bytes)) standin_faults |= FAULT_COPY_FROM_UNREGISTERED;
  struct copy *copy = &copies[copy_count++ % COPIES];
  *copy = (struct copy){to, from, bytes, 0};
  if (!standin_is_late) run(copy);
  pthread_mutex_unlock(&mutex);
}

/* Let the first copies be done that are not: so many, or all with -1. */
EXPORT void standin_finish(int64_t most) {
  pthread_mutex_lock(&mutex);
  for (int64_t i = 0; i < copy_count && most != 0; i++) {
    if (copies[i].is_done) continue;
    run(&copies[i]);
    most--;
  }
  pthread_mutex_unlock(&mutex);
}

EXPORT int64_t standin_waiting(void) {
  int64_t waiting = 0;
  pthread_mutex_lock(&mutex);
  for (int64_t i = 0; i < copy_count; i++) waiting += !copies[i].is_done;
  pthread_mutex_unlock(&mutex);
  return waiting;
}

EXPORT int cuDeviceGetCount(int *count) {
  *count = 2;
  return 0;
}

EXPORT int cuDeviceGet(int *device, int ordinal) {
  *device = ordinal + 10;
  return 0;
}

/* The second device is never used: to retain its context would wake it. */
EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *is_active) {
  *flags = 0;
  *is_active = device == 10 && standin_is_active;
  return 0;
}

EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) {
  if (device != 10) standin_faults |= FAULT_NO_CONTEXT;
  *context = &contexts;
  return 0;
}

EXPORT int cuCtxPushCurrent_v2(void *context) {
  if (context != &contexts) return INVALID_VALUE;
  __atomic_fetch_add(&contexts, 1, __ATOMIC_SEQ_CST);
  return 0;
}

EXPORT int cuCtxPopCurrent_v2(void **context) {
  *context = &contexts;
  __atomic_fetch_sub(&contexts, 1, __ATOMIC_SEQ_CST);
  return 0;
}

EXPORT int cuEventCreate(void **event, unsigned flags) {
  (void)flags;
  if (contexts == 0) standin_faults |= FAULT_NO_CONTEXT;
  pthread_mutex_lock(&mutex);
  int found = 0;
  while (found < EVENTS && events[found].is_made) found++;
  if (found < EVENTS) {
    events[found] = (struct event){.is_made = 1};
    standin_events++;
  }
  pthread_mutex_unlock(&mutex);
  *event = &events[found];
  return found < EVENTS ? 0 : OUT_OF_MEMORY;
}

EXPORT int cuEventDestroy_v2(void *event) {
  pthread_mutex_lock(&mutex);
  ((struct event *)event)->is_made = 0;
  standin_events--;
  pthread_mutex_unlock(&mutex);
  return 0;
}

EXPORT int cuCtxRecordEvent(void *context, void *event) {
  if (context != &contexts) return INVALID_VALUE;
  if (standin_record_fails) return standin_record_fails;
  if (standin_capturing) {
    standin_spoilt++;
    return CAPTURE_UNSUPPORTED;
  }
  pthread_mutex_lock(&mutex);
  struct event *recorded = event;
  if (!recorded->is_made) standin_faults |= FAULT_BAD_EVENT;
  recorded->is_recorded = 1;
  recorded->behind = copy_count;
  standin_records++;
  pthread_mutex_unlock(&mutex);
  return 0;
}

static _Thread_local int capture_mode; /* 0: global, 2: relaxed */

EXPORT int cuThreadExchangeStreamCaptureMode(int *mode) {
  int before = capture_mode;
  capture_mode = *mode;
  *mode = before;
  return 0;
}

EXPORT int cuEventQuery(void *event) {
  const struct event *asked = event;
  int answer = 0;
  if (standin_query_fails) return standin_query_fails;
  if (standin_never) return NOT_READY;
  pthread_mutex_lock(&mutex);
  if (!asked->is_made || !asked->is_recorded) standin_faults |= FAULT_BAD_EVENT;
  if (standin_capturing && capture_mode != 2) standin_spoilt++;
  for (int64_t i = 0; i < asked->behind; i++) {
    if (standin_prompt) run(&copies[i]);
    if (!copies[i].is_done) answer = NOT_READY;
  }
  pthread_mutex_unlock(&mutex);
  return answer;
}

EXPORT int cuMemHostRegister_v2(void *start, size_t bytes, unsigned flags) {
  (void)flags;
  if (contexts == 0) standin_faults |= FAULT_NO_CONTEXT;
  if (standin_capturing) standin_faults |= FAULT_REGISTERED_IN_A_CAPTURE;
  if (standin_refuses) return standin_refuses;
  pthread_mutex_lock(&mutex);
  int place = -1, error = 0;
  for (int i = 0; i < LOCKS; i++) {
    if (overlaps(&locks[i], start, bytes)) error = ALREADY_REGISTERED;
    if (locks[i].start == NULL) place = i;
  }
  if (error == 0 && place < 0) error = OUT_OF_MEMORY;
  if (error == 0) {
    locks[place] = (struct lock){start, bytes};
    standin_registered++;
    standin_ever_registered++;
  }
  pthread_mutex_unlock(&mutex);
  return error;
}

EXPORT int cuMemHostUnregister(void *start) {
  int error = NOT_REGISTERED;
  if (standin_capturing) standin_faults |= FAULT_REGISTERED_IN_A_CAPTURE;
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < LOCKS; i++) {
    if (locks[i].start != start) continue;
    for (int64_t j = 0; j < copy_count; j++) {
      struct lock read = {(char *)copies[j].from, copies[j].bytes};
      if (!copies[j].is_done && overlaps(&read, start, locks[i].bytes)) {
        standin_faults |= FAULT_UNREGISTERED_UNDER_A_COPY;
      }
    }
    locks[i].start = NULL;
    standin_registered--;
    error = 0;
  }
  pthread_mutex_unlock(&mutex);
  return error;
}

/* A context that is gone takes its events and registrations with it. */
EXPORT void standin_reset(void) {
  pthread_mutex_lock(&mutex);
  memset(locks, 0, sizeof locks);
  memset(events, 0, sizeof events);
  standin_registered = standin_events = 0;
  for (int64_t i = 0; i < copy_count; i++) copies[i].is_done = 1;
  standin_query_fails = CONTEXT_IS_DESTROYED;
  pthread_mutex_unlock(&mutex);
}

/* As it was when it was loaded, but for what is registered. */
EXPORT void standin_begin(void) {
  pthread_mutex_lock(&mutex);
  copy_count = 0;
  standin_prompt = standin_capturing = standin_never = standin_refuses = standin_query_fails = 0;
  standin_record_fails = standin_spoilt = standin_faults = standin_records = 0;
  standin_ever_registered = 0;
  standin_is_late = standin_is_active = 1;
  pthread_mutex_unlock(&mutex);
}

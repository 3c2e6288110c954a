/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * CUDA's driver, found at run time.
 *
 * Key invariant: nothing is recorded and nothing is locked while a graph is captured, because a
 * record spoils the capture, whatever its stream and thread. So each capture is announced before it
 * begins, and the count of captures is read and used under one mutex, for which a new one waits.
 *
 * A record answered by DRIVER_CAPTURING met a capture that was not announced, such as another
 * library's. It may happen again, so from then on no more slots are locked.
 *
 * Memory is locked without the interpreter's lock, in some ms. All else is called with it, and so
 * does not wait for the mutex: it is tried again at the next look.
 */

#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>

typedef void *context;

/* By the names of the driver's interface; `_v2` where an older one has the short name. */
static struct {
  int (*cuDeviceGetCount)(int *);
  int (*cuDeviceGet)(int *, int);
  int (*cuDevicePrimaryCtxGetState)(int, unsigned *, int *);
  int (*cuDevicePrimaryCtxRetain)(context *, int);
  int (*cuCtxPushCurrent)(context);
  int (*cuCtxPopCurrent)(context *);
  int (*cuCtxRecordEvent)(context, void *);
  int (*cuEventCreate)(void **, unsigned);
  int (*cuEventDestroy)(void *);
  int (*cuEventQuery)(void *);
  int (*cuMemHostRegister)(void *, size_t, unsigned);
  int (*cuMemHostUnregister)(void *);
  int (*cuThreadExchangeStreamCaptureMode)(int *);
} cuda;

enum {
  EVENT_WITHOUT_TIME = 2, /* CU_EVENT_DISABLE_TIMING */
  FOR_ALL_CONTEXTS = 1,   /* CU_MEMHOSTREGISTER_PORTABLE */
  SPARE_EVENTS = 64,      /* of each device, for later fences */
};

struct device {
  context primary; /* NULL: this process has not used it so far */
  void *spare[SPARE_EVENTS];
  int spares;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct device devices[DRIVER_DEVICES];
static int device_count;
static _Atomic int captures; /* raised under the mutex */
static int opened = 1; /* what driver_open has returned; 1: it was not called */
static _Atomic bool is_there, has_met;

static bool find(void *library, const char *name, void *function) {
  void *found = dlsym(library, name);
  memcpy(function, &found, sizeof found);
  return found != NULL;
}

#define FIND(NAME, SUFFIX) find(library, #NAME SUFFIX, &cuda.NAME)

static int find_all(const char *name) {
  void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return -ENOENT;
  bool has_all = FIND(cuDeviceGetCount, "") && FIND(cuDeviceGet, "") &&
                 FIND(cuDevicePrimaryCtxGetState, "") && FIND(cuDevicePrimaryCtxRetain, "") &&
                 FIND(cuCtxPushCurrent, "_v2") && FIND(cuCtxPopCurrent, "_v2") &&
                 FIND(cuCtxRecordEvent, "") && FIND(cuEventCreate, "") &&
                 FIND(cuEventDestroy, "_v2") && FIND(cuEventQuery, "") &&
                 FIND(cuMemHostRegister, "_v2") && FIND(cuMemHostUnregister, "") &&
                 FIND(cuThreadExchangeStreamCaptureMode, "");
  if (!has_all) return -ENOSYS;
  int error = cuda.cuDeviceGetCount(&device_count);
  if (error != 0) return error;
  if (device_count > DRIVER_DEVICES) return -E2BIG;
  return device_count > 0 ? 0 : -ENODEV;
}

/* Another thread may hold the mutex when a process forks: its child calls nothing of the driver. */
static void begin_in_child(void) { mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER; }

int driver_open(const char *library) {
  pthread_mutex_lock(&mutex);
  if (opened == 1) {
    opened = find_all(library);
    if (opened == 0) (void)pthread_atfork(NULL, NULL, begin_in_child);
    /* sync driver-R -> driver-A: a thread that finds the driver usable finds its functions. */
    atomic_store_explicit(&is_there, opened == 0, memory_order_release);
  }
  pthread_mutex_unlock(&mutex);
  return opened;
}

bool driver_is_usable(void) {
  /* sync driver-A <- driver-R: as above. */
  return atomic_load_explicit(&is_there, memory_order_acquire) && !driver_met_capture();
}

bool driver_met_capture(void) {
  /* relaxed: a thread that learns it late meets no other capture: records ask under the mutex. */
  return atomic_load_explicit(&has_met, memory_order_relaxed);
}

bool driver_is_capturing(void) {
  /* relaxed: who must not miss one holds the mutex, or captures on the same thread. */
  return atomic_load_explicit(&captures, memory_order_relaxed) > 0;
}

void driver_capture_begins(void) {
  pthread_mutex_lock(&mutex);
  /* relaxed: as above. */
  atomic_fetch_add_explicit(&captures, 1, memory_order_relaxed);
  pthread_mutex_unlock(&mutex);
}

void driver_capture_ends(void) {
  /* relaxed: a thread that learns it late records and locks a little later. */
  atomic_fetch_sub_explicit(&captures, 1, memory_order_relaxed);
}

int driver_exchange_mode(int mode) {
  (void)cuda.cuThreadExchangeStreamCaptureMode(&mode);
  return mode;
}

/* The context of a device that this process uses; NULL: none. To ask for one would make it. */
static context primary_of(int ordinal) {
  struct device *device = &devices[ordinal];
  int number;
  unsigned flags;
  int is_active = 0;
  if (device->primary != NULL) return device->primary;
  if (cuda.cuDeviceGet(&number, ordinal) != 0) return NULL;
  if (cuda.cuDevicePrimaryCtxGetState(number, &flags, &is_active) != 0 || !is_active) return NULL;
  if (cuda.cuDevicePrimaryCtxRetain(&device->primary, number) != 0) device->primary = NULL;
  return device->primary;
}

/* A device's context is gone, as after a reset, with its events; another one may be made. */
static void forget(int ordinal) { devices[ordinal] = (struct device){0}; }

/* Push a context for calls that need one: of the first device in use. -ENODEV: there is none. */
static int push_any(void) {
  for (int ordinal = 0; ordinal < device_count; ordinal++) {
    if (primary_of(ordinal) == NULL) continue;
    int error = cuda.cuCtxPushCurrent(devices[ordinal].primary);
    if (!driver_lost_context(error)) return error;
    forget(ordinal);
  }
  return -ENODEV;
}

static void note_capture(int error) {
  /* relaxed: as where it is read. */
  if (error == DRIVER_CAPTURING) atomic_store_explicit(&has_met, true, memory_order_relaxed);
}

/* Lock memory, or undo it: bytes 0. Unlocks the mutex, which the caller has locked. */
static int register_memory(void *start, uint64_t bytes) {
  context popped;
  int error = driver_is_capturing() ? -EBUSY : push_any();
  if (error == 0) {
    int mode = driver_exchange_mode(DRIVER_RELAXED);
    error = bytes > 0 ? cuda.cuMemHostRegister(start, (size_t)bytes, FOR_ALL_CONTEXTS)
                      : cuda.cuMemHostUnregister(start);
    (void)driver_exchange_mode(mode);
    (void)cuda.cuCtxPopCurrent(&popped);
  }
  note_capture(error);
  pthread_mutex_unlock(&mutex);
  return error;
}

int driver_lock(void *start, uint64_t bytes) {
  pthread_mutex_lock(&mutex);
  return register_memory(start, bytes);
}

int driver_unlock(void *start) {
  if (pthread_mutex_trylock(&mutex) != 0) return -EBUSY;
  int error = register_memory(start, 0);
  bool is_void = error == -ENODEV || error == DRIVER_NOT_LOCKED || driver_lost_context(error);
  return is_void ? 0 : error;
}

/* An event of a device, which is made in its context. */
static int take_event(struct device *device, void **event) {
  context popped;
  if (device->spares > 0) {
    *event = device->spare[--device->spares];
    return 0;
  }
  int error = cuda.cuCtxPushCurrent(device->primary);
  if (error != 0) return error;
  error = cuda.cuEventCreate(event, EVENT_WITHOUT_TIME);
  (void)cuda.cuCtxPopCurrent(&popped);
  return error;
}

static void drop_event(int ordinal, void *event) {
  struct device *device = &devices[ordinal];
  if (device->spares < SPARE_EVENTS) device->spare[device->spares++] = event;
  else (void)cuda.cuEventDestroy(event);
}

static void drop_events(struct fence *fence) {
  for (int ordinal = 0; ordinal < device_count; ordinal++) {
    if (fence->events[ordinal] != NULL) drop_event(ordinal, fence->events[ordinal]);
    fence->events[ordinal] = NULL;
  }
}

static int try_record(int ordinal, void **event) {
  int error = take_event(&devices[ordinal], event);
  if (error == 0) error = cuda.cuCtxRecordEvent(devices[ordinal].primary, *event);
  if (!driver_lost_context(error)) return error;
  *event = NULL;
  forget(ordinal);
  return error;
}

static int record_on(int ordinal, void **event) {
  int error = try_record(ordinal, event);
  if (!driver_lost_context(error)) return error;
  /* There may be a context after a reset, for which the events of before are none. */
  if (primary_of(ordinal) != NULL) error = try_record(ordinal, event);
  return driver_lost_context(error) ? 0 : error; /* what it did has ended */
}

static int record_all(struct fence *fence) {
  int error = 0;
  for (int ordinal = 0; ordinal < device_count && error == 0; ordinal++) {
    if (primary_of(ordinal) != NULL) error = record_on(ordinal, &fence->events[ordinal]);
  }
  return error;
}

int driver_record(struct fence *fence) {
  *fence = (struct fence){0};
  if (pthread_mutex_trylock(&mutex) != 0) return -EBUSY;
  int error = driver_is_capturing() ? -EBUSY : record_all(fence);
  if (error != 0) drop_events(fence);
  note_capture(error);
  pthread_mutex_unlock(&mutex);
  return error;
}

/* Ask one event after the other; those that are done are dropped. */
static int ask_all(struct fence *fence) {
  for (int ordinal = 0; ordinal < device_count; ordinal++) {
    void *event = fence->events[ordinal];
    int error = event == NULL ? 0 : cuda.cuEventQuery(event);
    if (error != 0 && !driver_lost_context(error)) return error;
    if (event != NULL && error == 0) drop_event(ordinal, event);
    fence->events[ordinal] = NULL;
  }
  return 0;
}

int driver_ask(struct fence *fence) {
  if (pthread_mutex_trylock(&mutex) != 0) return DRIVER_NOT_READY;
  int mode = driver_exchange_mode(DRIVER_RELAXED);
  int error = ask_all(fence);
  (void)driver_exchange_mode(mode);
  pthread_mutex_unlock(&mutex);
  return error;
}

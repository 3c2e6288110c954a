/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Says what a fault in a guarded segment means, and then lets it happen: one line on stderr, then
 * the handler that was there before takes over. The access is repeated when ours returns, so the
 * core, the debugger, or Python's faulthandler shows the guilty line.
 *
 * The handler is installed with the first guarded segment, and with a later one if it was removed
 * since. A fault outside of our segments is handed on as if we were not there. Workers get torch's
 * handlers, which replace this one.
 *
 * The handler runs on any thread, at any instruction: it takes no lock, allocates nothing, and
 * reads what it finds. A guard is taken out of the table before it is freed; a fault on one thread
 * while another frees that very guard may go unexplained.
 */

#include "guard.h"

#include <stdlib.h>

#include "message.h"

enum { GUARDS_MAX = 256, SIGNALS = 2 };

static _Atomic(struct guard *) guards[GUARDS_MAX];

static const int signals[SIGNALS] = {SIGSEGV, SIGBUS};
static struct sigaction previous[SIGNALS]; /* what was there before ours */
static bool is_installed[SIGNALS];

static void say_released(uint64_t slot, uint64_t at, struct guard_slot *seen) {
  uint64_t batch_bytes = guard_peek(&seen->batch_bytes);
  int64_t ago_ns = platform_now_ns() - (int64_t)guard_peek(&seen->released_ns);
  uint64_t ago_ms = ago_ns > 0 ? (uint64_t)ago_ns / 1000000 : 0;
  message_say("slot %" PRIu64 " was used after its release, at byte %" PRIu64
              "%s of the batch of ticket %" PRIu64 ", the last one there, which was released "
              "%" PRIu64 ".%03" PRIu64 " s ago: something kept a raw pointer into it, such as C "
              "code or data_ptr() of a tensor that is gone",
              slot, at, at >= batch_bytes ? ", beyond the end" : "", guard_peek(&seen->ticket),
              ago_ms / 1000, ago_ms % 1000);
}

static void say_leased(uint64_t slot, uint64_t at, struct guard_slot *seen) {
  message_say("slot %" PRIu64 " was used at byte %" PRIu64 ", beyond the %" PRIu64
              " bytes of the batch of ticket %" PRIu64 ", which is there now: an index out of "
              "bounds, or a raw pointer into a batch that was there before",
              slot, at, guard_peek(&seen->batch_bytes), guard_peek(&seen->ticket));
}

/* Say which slot the byte belongs to, unless it is open. */
static bool explain_byte(struct guard *guard, uint32_t slot, uint64_t at) {
  struct guard_slot *seen = &guard->slots[slot];
  uint64_t released_ns = guard_peek(&seen->released_ns);
  if (at < guard_peek(&seen->open_bytes)) return false;
  if (released_ns == GUARD_UNUSED) {
    message_say("slot %" PRIu64 ", which holds no batch so far, was used at byte %" PRIu64,
                (uint64_t)slot, at);
  } else if (released_ns == GUARD_LEASED) {
    say_leased(slot, at, seen);
  } else {
    say_released(slot, at, seen);
  }
  return true;
}

static bool explain(struct guard *guard, uintptr_t address) {
  const struct geometry *geometry = &guard->geometry;
  uintptr_t start = (uintptr_t)guard->base + geometry->slots_offset;
  if (address < start || address - start >= geometry->total_bytes - geometry->slots_offset) {
    return false;
  }
  uint64_t offset = address - start;
  uint32_t slot = (uint32_t)(offset / geometry->range_bytes);
  return explain_byte(guard, slot, offset % geometry->range_bytes);
}

static bool say_what_was_used(const siginfo_t *info) {
  for (int i = 0; i < GUARDS_MAX; i++) {
    /* sync watched-A <- watched-R: the guard is filled in before it is in the table. */
    struct guard *guard = atomic_load_explicit(&guards[i], memory_order_acquire);
    if (guard != NULL && explain(guard, (uintptr_t)info->si_addr)) return true;
  }
  return false;
}

/* Let the handler that was there before ours take this signal, and all that follow. */
static void hand_over(int i, const siginfo_t *info) {
  sigaction(signals[i], &previous[i], NULL);
  /* A fault repeats itself; a signal that a process sent does not. */
  if (info->si_code <= 0) raise(signals[i]);
}

static void on_fault(int signal_number, siginfo_t *info, void *context) {
  int i = signal_number == signals[0] ? 0 : 1;
  int error = errno;
  const struct sigaction *next = &previous[i];
  bool is_ours = info->si_code > 0 && say_what_was_used(info);
  if (is_ours || next->sa_handler == SIG_DFL || next->sa_handler == SIG_IGN) {
    hand_over(i, info);
  } else if (next->sa_flags & SA_SIGINFO) {
    /* It may know how to repair a fault of its own. */
    next->sa_sigaction(signal_number, info, context);
  } else {
    next->sa_handler(signal_number);
  }
  errno = error;
}

static void install(int i) {
  struct sigaction now, ours = {.sa_flags = SA_SIGINFO | SA_ONSTACK};
  ours.sa_sigaction = on_fault;
  sigemptyset(&ours.sa_mask);
  sigaction(signals[i], NULL, &now);
  /* One that was installed since may go on to ours, so ours does not go on to it. */
  if (is_installed[i] && now.sa_handler != SIG_DFL) return;
  sigaction(signals[i], &ours, &previous[i]);
  is_installed[i] = true;
}

void guard_watch(struct guard *guard) {
  for (int i = 0; i < SIGNALS; i++) install(i);
  for (int i = 0; i < GUARDS_MAX; i++) {
    struct guard *none = NULL;
    /* sync watched-R -> watched-A: the guard is filled in before it is in the table. */
    /* relaxed: if another guard stands there, the next place is tried. */
    if (atomic_compare_exchange_strong_explicit(&guards[i], &none, guard, memory_order_release,
                                                memory_order_relaxed)) {
      return;
    }
  }
}

void guard_end(struct guard *guard) {
  for (int i = 0; i < GUARDS_MAX; i++) {
    struct guard *there = guard;
    /* relaxed: the handler may still be reading it; see above. */
    (void)atomic_compare_exchange_strong_explicit(&guards[i], &there, NULL, memory_order_relaxed,
                                                  memory_order_relaxed);
  }
  free(guard);
}

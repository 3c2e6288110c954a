/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_PLATFORM_H
#define SHMLOADER_PLATFORM_H

/*
 * What differs between machines with Linux, and nothing else: parking and waking, page reservation,
 * cache lines, streaming stores. This is the only file of the project that may hold an #ifdef.
 *
 * Parking is a futex. With SHMLOADER_PORTABLE defined, and where a filter of system calls refuses
 * futexes, it is a sleep that grows from 20 us to 1 ms and looks at the word again after each nap;
 * the callers cannot tell the two apart except by the clock, so both run the same tests.
 *
 * A STEP stands at each publication, which is a store that another process acts upon, and in the
 * middle of each copy into the segment. It does nothing, but with SHMLOADER_KILL_POINTS defined
 * the process may be told to die there. In a simulated run of such a build, others may
 * go on there first, and parking and the clocks are the simulation's. debug/steps.h has both.
 */

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define CACHE_LINE 64
#define HUGE_BYTES (UINT64_C(2) << 20) /* a huge page, if there are any */

#include "debug/steps.h"

#if defined(SHMLOADER_KILL_POINTS)
#define IS_SIMULATED door_is_open()
#define STEP(NAME) step_passed(NAME)
#define STEP_COPY(NAME, TO, FROM, BYTES) step_copy(NAME, TO, FROM, BYTES)
#define READ_OUT(FROM, BYTES) door_read_out(FROM, BYTES)
#define OWNERS_ENTER(BASE, GEOMETRY, SEAT) owners_enter(BASE, GEOMETRY, SEAT)
#define OWNERS_LEAVE(BASE) owners_leave(BASE)
#else
#define IS_SIMULATED 0
#define STEP(NAME) ((void)(NAME))
#define STEP_COPY(NAME, TO, FROM, BYTES) ((void)(NAME), memcpy(TO, FROM, BYTES))
#define READ_OUT(FROM, BYTES) ((void)(FROM), (void)(BYTES))
#define OWNERS_ENTER(BASE, GEOMETRY, SEAT) ((void)(BASE), (void)(GEOMETRY), (void)(SEAT))
#define OWNERS_LEAVE(BASE) ((void)(BASE))
#endif

/* A function that is hardly ever called: the compiler keeps the hot path straight-line. */
#define PLATFORM_COLD __attribute__((cold))

_Static_assert(sizeof(_Atomic uint32_t) == 4, "an atomic word lies in shared memory as four bytes");
_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "a lock inside an atomic would not survive its process");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "64-bit grants are read while they are written");

static inline int64_t platform_clock_ns(clockid_t clock) {
  if (IS_SIMULATED) return door_now_ns();
  struct timespec now;
  clock_gettime(clock, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline int64_t platform_now_ns(void) { return platform_clock_ns(CLOCK_MONOTONIC); }

/*
 * The same clock at the kernel's last tick, up to a few milliseconds ago: a quarter of the price,
 * for what is asked at each sample.
 */
static inline int64_t platform_coarse_ns(void) { return platform_clock_ns(CLOCK_MONOTONIC_COARSE); }

/* The processor time of this thread. */
static inline int64_t platform_thread_ns(void) {
  return platform_clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

/* Between two looks at a word: leave the core's other thread its turn, and in a run all others. */
static inline void platform_relax(void) {
  if (IS_SIMULATED) {
    door_line(2); /* of no source */
    return;
  }
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

static inline struct timespec platform_timespec(int64_t ns) {
  return (struct timespec){.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
}

/* Park without the kernel's help: nap and look at the word, as platform_park. */
static inline int platform_nap(_Atomic uint32_t *word, uint32_t expected, int64_t timeout_ns) {
  int64_t deadline = platform_now_ns() + timeout_ns;
  int64_t nap_ns = 20000;
  for (;;) {
    /* relaxed: the caller looks at the ring again with acquire; this only ends the nap. */
    if (atomic_load_explicit(word, memory_order_relaxed) != expected) return 0;
    int64_t left_ns = deadline - platform_now_ns();
    if (left_ns <= 0) return -ETIMEDOUT;
    struct timespec nap = platform_timespec(nap_ns < left_ns ? nap_ns : left_ns);
    if (nanosleep(&nap, NULL) != 0) return -EINTR;
    nap_ns = nap_ns < 500000 ? nap_ns * 2 : 1000000;
  }
}

/* Not FUTEX_PRIVATE, here and below: the words are shared between processes. */
static inline bool platform_may_call(int operation, int expected_error) {
  static _Atomic uint32_t word; /* always 0, and nothing waits for it */
  long outcome = syscall(SYS_futex, &word, operation, 1, NULL, NULL, 0);
  return outcome >= 0 || errno == expected_error;
}

/*
 * Returns true if processes wake each other by futex; false: the kernel refuses to wake or to wait,
 * as under a filter of system calls, which a process hands on to those that it starts.
 */
static inline bool platform_has_futex(void) {
  enum { UNKNOWN, HAS, HAS_NOT };
#if defined(SHMLOADER_PORTABLE)
  static _Atomic int known = HAS_NOT;
#else
  static _Atomic int known = UNKNOWN;
#endif
  /* relaxed: each thread that asks first finds the same answer. */
  int answer = atomic_load_explicit(&known, memory_order_relaxed);
  if (answer == UNKNOWN) {
    int error = errno;
    bool has = platform_may_call(FUTEX_WAKE, 0) && platform_may_call(FUTEX_WAIT, EAGAIN);
    errno = error;
    answer = has ? HAS : HAS_NOT;
    /* relaxed: as above. */
    atomic_store_explicit(&known, answer, memory_order_relaxed);
  }
  return answer == HAS;
}

/*
 * Park until *word differs from expected, a wake, a signal or the timeout.
 * Any thread of any process that maps the word; may park for timeout_ns (<= 0 returns at once).
 * 0: look again (woken, or the word had changed); -ETIMEDOUT; -EINTR: a signal arrived.
 */
static inline int platform_park(_Atomic uint32_t *word, uint32_t expected, int64_t timeout_ns) {
  if (IS_SIMULATED) return door_park(word, expected, timeout_ns);
  if (!platform_has_futex()) return platform_nap(word, expected, timeout_ns);
  struct timespec timeout = platform_timespec(timeout_ns > 0 ? timeout_ns : 0);
  long outcome = syscall(SYS_futex, word, FUTEX_WAIT, expected, &timeout, NULL, 0);
  if (outcome == 0 || errno == EAGAIN) return 0;
  if (errno == ETIMEDOUT || errno == EINTR) return -errno;
  return platform_nap(word, expected, timeout_ns); /* refused by a filter that was set since */
}

/* Wake the one process that may be parked on word. Wait-free. */
static inline void platform_unpark(_Atomic uint32_t *word) {
  if (IS_SIMULATED) {
    door_unpark(word);
    return;
  }
  syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/*
 * Return once the process pid is gone; at once if it is gone already. May park for ever.
 * is_parent: it was this process's parent when the caller began; recognizes an unreaped zombie.
 */
static inline void platform_wait_for_end(int pid, bool is_parent) {
#if defined(SYS_pidfd_open) && !defined(SHMLOADER_PORTABLE)
  int descriptor = (int)syscall(SYS_pidfd_open, pid, 0);
  if (descriptor >= 0) {
    struct pollfd end = {.fd = descriptor, .events = POLLIN};
    int ended;
    do ended = poll(&end, 1, -1);
    while (ended < 0 && errno == EINTR);
    if (ended > 0) return;
  }
  if (errno == ESRCH) return;
#endif
  /* Signals can still be sent to a process that has ended and was not reaped. */
  struct timespec nap = platform_timespec(500000000);
  while (is_parent ? getppid() == pid : kill(pid, 0) == 0 || errno == EPERM) nanosleep(&nap, NULL);
}

/* A private page of zeros that a forked child gets as zeros again; NULL: there is none here. */
static inline void *platform_wiped_page(size_t bytes) {
#if !defined(SHMLOADER_PORTABLE)
#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif
  void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return NULL;
  if (madvise(page, bytes, MADV_WIPEONFORK) == 0) return page;
  munmap(page, bytes);
  return NULL;
#else
  (void)bytes;
  return NULL;
#endif
}

/*
 * Map a page of a file of its own, for as long as this process and those that it forks live.
 * The file's descriptor, or -errno; children.c says what it is for.
 */
static inline int platform_witness_map(void **page) {
  int fd = memfd_create("shmloader-witness", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return -errno;
  /* Shared and writable by right is what the seal looks for; nothing is ever stored there. */
  bool may_seal = fcntl(fd, F_ADD_SEALS, 0) == 0;
  void *start = may_seal ? mmap(NULL, 1, PROT_NONE, MAP_SHARED, fd, 0) : MAP_FAILED;
  if (start != MAP_FAILED) {
    *page = start;
    return fd;
  }
  int error = errno;
  close(fd);
  return -error;
}

static inline void platform_witness_unmap(void *page) { munmap(page, 1); }

/* True if no process maps the file's page any more. */
static inline bool platform_witness_is_alone(int fd) {
  return fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == 0;
}

/* Which file a descriptor means; zeros if it is closed. */
struct platform_file {
  uint64_t device, inode;
};
static inline struct platform_file platform_file_of(int fd) {
  struct stat found;
  if (fstat(fd, &found) != 0) return (struct platform_file){.device = 0, .inode = 0};
  return (struct platform_file){.device = (uint64_t)found.st_dev, .inode = (uint64_t)found.st_ino};
}

/* False: other code, or a child that closed all descriptors, gave the number to another file. */
static inline bool platform_is_file(int fd, struct platform_file file) {
  struct platform_file found = platform_file_of(fd);
  return found.device == file.device && found.inode == file.inode;
}

static inline void platform_close(int fd, struct platform_file file) {
  if (platform_is_file(fd, file)) close(fd);
}

/* Give the pages of [offset, offset + bytes) back; the bytes read as zero then. 0 or -errno. */
static inline int platform_punch(int fd, uint64_t offset, uint64_t bytes) {
  int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  return fallocate(fd, mode, (off_t)offset, (off_t)bytes) == 0 ? 0 : -errno;
}

static inline int platform_reserve_piece(int fd, uint64_t offset, uint64_t bytes) {
  return fallocate(fd, 0, (off_t)offset, (off_t)bytes) == 0 ? 0 : -errno;
}

/*
 * The same by writing a zero into each page, which are empty: dearer, but an error too, and no
 * fault, if memory is short. For kernels and filters of system calls that refuse fallocate.
 */
static inline int platform_write_piece(int fd, uint64_t offset, uint64_t bytes,
                                       uint64_t page_bytes) {
  for (uint64_t at = offset; at < offset + bytes; at = (at / page_bytes + 1) * page_bytes) {
    if (pwrite(fd, "", 1, (off_t)at) != 1) return -errno;
  }
  return 0;
}

/* Returns true for the errors of a call that is not to be had here, whatever it is asked for. */
static inline bool platform_is_refusal(int error) {
  return error == -ENOSYS || error == -EPERM || error == -EACCES || error == -EOPNOTSUPP;
}

/*
 * Make the pages of [offset, offset + bytes) of the file exist, so that no store can fault for want
 * of memory. Pieces of 64 MiB: on some kernels a signal undoes a whole call on tmpfs. A piece that
 * a signal interrupts is tried again half as long, down to one page, so that a signal that comes
 * again and again lets some piece through. Nothing may lie there yet.
 * Returns how many bytes from offset on exist; fewer than asked for: a signal arrived, so its
 * handlers should run before the rest is asked for. -errno, never -EINTR: no piece is left, unless
 * punching is refused.
 */
static inline int64_t platform_reserve(int fd, uint64_t offset, uint64_t bytes,
                                       uint64_t page_bytes) {
  uint64_t piece_bytes = 64u << 20;
  uint64_t done = 0;
  bool interrupted = false;
  while (done < bytes && !(interrupted && done > 0)) {
    uint64_t piece = bytes - done < piece_bytes ? bytes - done : piece_bytes;
    STEP("reserve: begun");
    int error = platform_reserve_piece(fd, offset + done, piece);
    if (platform_is_refusal(error)) {
      error = platform_write_piece(fd, offset + done, piece, page_bytes);
    }
    if (error == -EINTR) {
      if (piece <= page_bytes) break;
      piece_bytes = (piece / 2 + page_bytes - 1) / page_bytes * page_bytes;
      interrupted = true;
      continue;
    }
    if (error != 0) {
      if (done > 0) (void)platform_punch(fd, offset, done);
      return error;
    }
    STEP("reserve: piece added");
    done += piece;
  }
  return (int64_t)done;
}

/* Advise the kernel, which may not know the advice. 0 or -errno, which callers may do without. */
static inline int platform_hint(void *start, size_t bytes, int advice) {
  int error = errno;
  int outcome = madvise(start, bytes, advice) == 0 ? 0 : -errno;
  errno = error;
  return outcome;
}

/*
 * Leave [start, start + bytes) out of core dumps: for shared memory the kernel turns each hole that
 * it dumps into a page. A hint; children inherit it with the mapping.
 */
static inline void platform_leave_undumped(void *start, size_t bytes) {
  (void)platform_hint(start, bytes, MADV_DONTDUMP);
}

/*
 * Map a file that is shared, and none of its pages: also in a process that has called mlockall(),
 * where the kernel would make a page of each hole, unless a filter of calls refuses mprotect().
 * MAP_FAILED and errno, as mmap().
 */
static inline void *platform_map_shared(void *wish, size_t bytes, int protection, int fd) {
  void *base = mmap(wish, bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (base == MAP_FAILED) return base;
  (void)munlock(base, bytes);
  if (mprotect(base, bytes, protection) == 0) return base;
  munmap(base, bytes);
  return mmap(wish, bytes, protection, MAP_SHARED | MAP_NORESERVE, fd, 0);
}

/*
 * Map pages that exist into this process in one call instead of one fault per page.
 * A hint: if the kernel does not know it, the faults happen one by one as before.
 */
static inline void platform_populate(void *start, size_t bytes, bool is_written) {
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
  STEP("populate: begun");
  (void)platform_hint(start, bytes, is_written ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
}

/*
 * Make huge pages of a range of shared memory, one for each whole 2 MiB in which a page exists,
 * without regard to what the kernel does by default. A hint. 0, or -errno.
 */
static inline int platform_collapse(void *start, size_t bytes) {
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
  return platform_hint(start, bytes, MADV_COLLAPSE);
}

/*
 * Ask for huge pages in private memory that was never touched: one fault instead of 512. A hint:
 * start lies on a huge page, and a rest that is shorter than one stays small pages.
 */
static inline void platform_hugify(void *start, size_t bytes) {
  (void)platform_hint(start, bytes / HUGE_BYTES * HUGE_BYTES, MADV_HUGEPAGE);
}

#define PLATFORM_STREAM_BLOCK 64

#if defined(__SSE2__)

#include <immintrin.h>

#define PLATFORM_HAS_STREAM 1

/* Copy one 64-byte block past the caches; to is 16-byte aligned, from may lie anywhere. */
static inline void platform_stream_block(uint8_t *to, const uint8_t *from) {
  __m128i a = _mm_loadu_si128((const __m128i *)from);
  __m128i b = _mm_loadu_si128((const __m128i *)(from + 16));
  __m128i c = _mm_loadu_si128((const __m128i *)(from + 32));
  __m128i d = _mm_loadu_si128((const __m128i *)(from + 48));
  _mm_stream_si128((__m128i *)to, a);
  _mm_stream_si128((__m128i *)(to + 16), b);
  _mm_stream_si128((__m128i *)(to + 32), c);
  _mm_stream_si128((__m128i *)(to + 48), d);
}

static inline void platform_prefetch(const uint8_t *from) {
  _mm_prefetch((const char *)from, _MM_HINT_NTA);
}

/* Streaming stores are not ordered by a release store: every streaming copy ends with this. */
static inline void platform_stream_end(void) { _mm_sfence(); }

#else

#define PLATFORM_HAS_STREAM 0

static inline void platform_stream_block(uint8_t *to, const uint8_t *from) { memcpy(to, from, 64); }
static inline void platform_prefetch(const uint8_t *from) { (void)from; }
static inline void platform_stream_end(void) {}

#endif

#endif

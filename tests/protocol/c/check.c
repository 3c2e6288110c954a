/* SPDX-License-Identifier: BSD-3-Clause */
#include "check.h"

#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

double check_seconds = 1;
uint64_t check_seed;
const char *check_inputs;

static const char *running = "start";

static struct {
  const char *name;
  void (*run)(void);
} tests[64];
static size_t count;

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void on_alarm(int signal_number) {
  (void)signal_number;
  static const char text[] = "FAILED: the time limit of the whole program is reached in ";
  ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
  written += write(STDERR_FILENO, running, strlen(running));
  written += write(STDERR_FILENO, "\n", 1);
  _exit(written > 0 ? 1 : 2);
}

static void read_option(const char *name, const char *value) {
  if (strcmp(name, "--seconds") == 0) {
    check_seconds = strtod(value, NULL);
  } else if (strcmp(name, "--seed") == 0) {
    check_seed = strtoull(value, NULL, 0);
  } else if (strcmp(name, "--inputs") == 0) {
    check_inputs = value;
  } else {
    fprintf(stderr, "unknown option %s; known are --seconds, --seed and --inputs\n", name);
    exit(2);
  }
}

static void start(int argc, char **argv) {
  check_seed = (uint64_t)now_ns() & 0xffffffff;
  for (int i = 1; i < argc; i += 2) read_option(argv[i], i + 1 < argc ? argv[i + 1] : "");
  printf("seed %" PRIu64 "\n", check_seed);
  fflush(stdout);
  signal(SIGALRM, on_alarm);
  alarm((unsigned)(60 + 10 * check_seconds));
}

void check_add(const char *name, void (*test)(void)) {
  if (count == LENGTH(tests)) abort();
  tests[count].name = name;
  tests[count++].run = test;
}

int main(int argc, char **argv) {
  start(argc, argv);
  for (size_t i = 0; i < count; i++) {
    running = tests[i].name;
    tests[i].run();
    printf("ok %s\n", running);
    fflush(stdout);
  }
  return 0;
}

void check_failed(const char *file, int line, const char *expression, const char *format, ...) {
  char values[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(values, sizeof values, format, arguments);
  va_end(arguments);
  fprintf(stderr, "FAILED %s: %s:%d: %s:%s (--seed %" PRIu64 ")\n", running, file, line, expression,
          values, check_seed);
  abort(); /* a fuzzer keeps the input of a process that aborts, and not of one that exits */
}

void check_equal(const char *file, int line, const char *actual_text, int64_t expected,
                 int64_t actual) {
  if (expected == actual) return;
  check_failed(file, line, actual_text, " expected %" PRId64 ", is %" PRId64, expected, actual);
}

static int status_of(pid_t child) {
  int status;
  CHECK_EQUAL(child, waitpid(child, &status, 0));
  return status;
}

void check_ends_well(pid_t child) { CHECK_EQUAL(0, status_of(child)); }

void check_ends_killed(pid_t child, int signal_number) {
  int status = status_of(child);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == signal_number, "status %x", (unsigned)status);
}

uint64_t random_start(uint64_t stream) {
  uint64_t state = check_seed * UINT64_C(0x9e3779b97f4a7c15) + stream + 1;
  /* A start of zero would stay zero; a few steps separate streams that start alike. */
  state = state == 0 ? 1 : state;
  for (int i = 0; i < 8; i++) random_next(&state);
  return state;
}

struct limit limit_of(double share, uint64_t rounds) {
  int64_t length_ns = (int64_t)(check_seconds * share * 1e9);
  return (struct limit){.deadline_ns = now_ns() + length_ns, .rounds_left = rounds};
}

bool limit_allows(struct limit *limit) {
  return limit->rounds_left-- > 0 && now_ns() < limit->deadline_ns;
}

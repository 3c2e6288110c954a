/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_TESTS_CHECK_H
#define SHMLOADER_TESTS_CHECK_H

/*
 * Shared by every program here: main and its options, checks that say where, with which values and under which
 * seed they failed, a generator, and limits in time and count for every loop.
 *
 * The generator is our own, one state per thread: the lock inside random() would put threads in an
 * order that hides the races these programs look for.
 */

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

/* How long the program's loops go on altogether, and the seed of its random choices. */
extern double check_seconds;
extern uint64_t check_seed;

/* A folder of inputs that were kept, or NULL. */
extern const char *check_inputs;

/* Define a test: a program runs its own in the order in which they stand, and says "ok name". */
void check_add(const char *name, void (*test)(void));
#define TEST(name)                                                                      \
  static void name(void);                                                               \
  __attribute__((constructor)) static void add_##name(void) { check_add(#name, name); } \
  static void name(void)

/* End this process as failed. Any thread, any process. */
_Noreturn void check_failed(const char *file, int line, const char *expression, const char *format,
                            ...) __attribute__((format(printf, 4, 5)));

void check_equal(const char *file, int line, const char *actual_text, int64_t expected,
                 int64_t actual);

/* A format and values may follow the expression. */
#define CHECK(expression, ...) \
  ((expression) ? (void)0 : check_failed(__FILE__, __LINE__, #expression, " " __VA_ARGS__))

/* Numbers of up to 64 bits. */
#define CHECK_EQUAL(expected, actual) \
  check_equal(__FILE__, __LINE__, #actual, (int64_t)(expected), (int64_t)(actual))

/* A child of this process must end with status 0, or by this signal. */
void check_ends_well(pid_t child);
void check_ends_killed(pid_t child, int signal_number);

/* Elements of an array. */
#define LENGTH(array) (sizeof(array) / sizeof *(array))

/* A generator's start, different for every stream of one seed. */
uint64_t random_start(uint64_t stream);

/* The next number: xorshift64*, by Vigna (2016). */
static inline uint64_t random_next(uint64_t *state) {
  *state ^= *state >> 12;
  *state ^= *state << 25;
  *state ^= *state >> 27;
  return *state * UINT64_C(0x2545f4914f6cdd1d);
}

/* A number in [0, bound). */
static inline uint64_t random_below(uint64_t *state, uint64_t bound) {
  return (random_next(state) >> 16) % bound;
}

/* A loop's limits: whichever is reached first. */
struct limit {
  int64_t deadline_ns;
  uint64_t rounds_left;
};

/* A share of check_seconds, and a number of rounds. */
struct limit limit_of(double share, uint64_t rounds);
bool limit_allows(struct limit *limit);

#endif

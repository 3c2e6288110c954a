/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A run of several processes of which one goes on at a time, chosen by a generator of numbers: the
 * same seed gives the same run.
 *
 * All processes of a run map one file. The one that has the turn is the only one that reads or
 * writes it, but for the two atomics of each process. At each step, park, look and end it asks who
 * goes on, sets that process's go, and waits for its own. There is no scheduler's process: whoever
 * gives up the turn chooses.
 *
 * Waits. A process that parks is left out until its word is rung or its time comes; the number of
 * the process that is parked stands beside the word, in the padding of the doorbell. One that waits
 * for what the kernel tells (an end, a message) looks again when another process has done
 * something. If none can go on, the time goes on to the next deadline; sometimes before that, as if
 * the others were slow.
 *
 * Deaths. Whoever has the turn kills, and waits until the kernel says that the process is gone: its
 * mappings and descriptors are closed then, and what others see of it does not depend on the real
 * time. A process that ends by itself says so here, and the next one waits for that in its place.
 *
 * Key invariant: exactly one process of a run is between taking and giving the turn, or ending
 * after it has given it. What it draws and notes depends on the file and on its own memory alone.
 *
 * A fault ends the run: no process can go on or ever will, or a process was not woken for news. The
 * first process of the run is killed, by which the test sees it.
 */

#include "door.h"

#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>

#include "platform.h"
#include "watch_owners.h"

enum { ACTORS = 64, EVENTS = 1 << 16, DEATHS = 14, SLOWED = 16 };
enum { OWNER = 2 }; /* from a doorbell's count to the word that names the process parked there */
enum actor_state { ABSENT, RUNS, PARKS, LOOKS, ENDS, DEAD };
enum event_kind { STEP_PASSED, LINE, PARKED, LOOKED, SLEPT, FORKED, LEFT, KILLED, TIMED_OUT };
enum fault { NO_FAULT, BLOCKED, ENDLESS, UNWOKEN, CROWDED, TWO_WRITERS };
enum step_flag { OF_VIEW = 1, SAYS_NOTHING = 2, IS_NEWS = 4, HAS_LOOKED = 8 };

struct actor {
  alignas(CACHE_LINE) _Atomic uint32_t go; /* 1: it has the turn */
  _Atomic uint32_t pid;                    /* 0: it has not arrived */
  uint32_t state;
  uint32_t may_die;
  uint32_t is_timed_out; /* its last wait ended by its deadline */
  uint32_t is_quiet;     /* and none could go on then: no news may be there */
  int64_t deadline_ns;
  uint64_t looked_at; /* the activity when it looked */
  uint32_t died;      /* how many had died when it last did anything but park */
  uint32_t role;      /* watch_owners.h: whose words it may write */
};

struct event {
  uint8_t actor, kind;
  uint16_t unused;
  uint32_t number;
};

struct known_step {
  char name[56];
  uint32_t flags, unused;
};

/* The file; door.py writes the same layout. */
struct play {
  uint64_t random;
  uint64_t hash; /* of all events */
  uint64_t events;
  uint64_t activity; /* how often anything may have happened that others can see */
  int64_t now_ns;
  uint64_t events_most;
  uint64_t switches_from, switches_to; /* events between which the turn is given away unasked */
  uint64_t deaths[DEATHS];             /* events at which a process dies, in rising order */
  uint32_t death_count, died;
  uint32_t switch_one_in, fire_one_in; /* how seldom the turn, and a deadline, come early */
  uint32_t slow;                       /* a bit for each process that is seldom chosen */
  uint32_t has_views;                  /* steps of views are places to go on from, too */
  uint32_t actor_count, turn;
  uint32_t fault, fault_actor;
  uint32_t step_count, switches;
  uint32_t fault_at;   /* of two writers: the offset in the segment */
  uint32_t scribbles;  /* what was read out is overwritten at once, as if by its writer */
  uint32_t struck;     /* how many of those deaths have come */
  uint32_t death_step, death_passage; /* one more: when that step, from 1, is passed so often */
  uint32_t forge_at;   /* the event at which a worker writes nonsense and dies; 0: none does */
  uint32_t segments;   /* how many the trainer has opened; the last one is compared */
  alignas(CACHE_LINE) struct actor actors[ACTORS];
  struct event trace[EVENTS];
  uint8_t segment[OWNERS_BYTES]; /* its words when the turn was given last */
  struct known_step steps[];
};

_Static_assert(offsetof(struct play, death_count) == 176, "door.py writes the same layout");
_Static_assert(offsetof(struct play, actors) == 256, "door.py writes the same layout");
_Static_assert(sizeof(struct actor) == CACHE_LINE, "door.py reads the same layout");
_Static_assert(sizeof(struct event) == 8, "door.py reads the same layout");

static const int64_t STEP_NS = 1000;

static struct play *play; /* NULL: no test asked for it. Set before any step. */
static bool is_open;
static uint32_t me;
static uint32_t entered; /* which of the trainer's segments this process watches, from 1 */

void *map_of_test(const char *variable) {
  const char *path = getenv(variable);
  struct stat file;
  void *start = MAP_FAILED;
  int fd = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return NULL;
  if (fstat(fd, &file) == 0) {
    start = mmap(NULL, (size_t)file.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  close(fd);
  return start == MAP_FAILED ? NULL : start;
}

__attribute__((constructor)) static void map_play(void) {
  play = map_of_test("SHMLOADER_SIMULATION");
}

bool door_is_open(void) { return is_open; }

int64_t door_now_ns(void) { return play->now_ns; }

/* Numbers: G. Marsaglia's xorshift, Journal of Statistical Software 8(14), 2003. */
static uint64_t draw(void) {
  play->random ^= play->random << 13;
  play->random ^= play->random >> 7;
  play->random ^= play->random << 17;
  return play->random >> 11;
}

static bool draws_one_in(uint32_t number) { return number > 0 && draw() % number == 0; }

/* End the run. The test finds out what was wrong, and ends the processes that wait. */
static void fail(enum fault fault, uint32_t actor) {
  play->fault = (uint32_t)fault;
  play->fault_actor = actor;
  /* relaxed: the first process was there before all others. */
  kill((pid_t)atomic_load_explicit(&play->actors[0].pid, memory_order_relaxed), SIGKILL);
  _exit(1);
}

static void note(uint32_t actor, enum event_kind kind, uint32_t number) {
  struct event event = {.actor = (uint8_t)actor, .kind = (uint8_t)kind, .number = number};
  play->trace[play->events % EVENTS] = event;
  play->events++;
  uint64_t word = (uint64_t)actor << 40 | (uint64_t)kind << 32 | number;
  play->hash = (play->hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
  play->hash ^= play->hash >> 29;
  if (play->events >= play->events_most) fail(ENDLESS, actor);
}

/* Deaths */

static void wait_until_gone(int pid) {
  int fd = (int)syscall(SYS_pidfd_open, pid, 0);
  if (fd < 0) return; /* reaped already */
  struct pollfd end = {.fd = fd, .events = POLLIN};
  while (poll(&end, 1, -1) < 0) continue;
  close(fd);
}

static int pid_of(struct actor *actor) {
  uint32_t pid = 0;
  /* relaxed: the number says all; a child that was just forked may not have said it yet. */
  while ((pid = atomic_load_explicit(&actor->pid, memory_order_relaxed)) == 0) sched_yield();
  return (int)pid;
}

static void bury(struct actor *actor) {
  wait_until_gone(pid_of(actor));
  actor->state = DEAD;
  play->activity++;
}

static void bury_those_that_end(void) {
  for (uint32_t i = 0; i < play->actor_count; i++) {
    if (play->actors[i].state == ENDS) bury(&play->actors[i]);
  }
}

/* The turn */

static void wait_for_turn(void) {
  _Atomic uint32_t *go = &play->actors[me].go;
  struct timespec patience = {.tv_sec = 2};
  /* sync turn-A <- turn-R: all that the others have done is visible from here on. */
  while (atomic_load_explicit(go, memory_order_acquire) == 0) {
    long outcome = syscall(SYS_futex, go, FUTEX_WAIT, 0, &patience, NULL, 0);
    /* The test was killed, and the run's first process with it: no process gives turns any more. */
    if (outcome != 0 && errno == ETIMEDOUT && kill(pid_of(&play->actors[0]), 0) != 0) _exit(1);
  }
  /* relaxed: only the process that has the turn gives it, and that is this one now. */
  atomic_store_explicit(go, 0, memory_order_relaxed);
  play->turn = me;
  bury_those_that_end();
}

static bool role_lives(uint32_t role) {
  for (uint32_t i = 0; i < play->actor_count; i++) {
    if (play->actors[i].role == role && play->actors[i].state != DEAD) return true;
  }
  return false;
}

/* What this process has written since it got the turn must have been its own to write. */
static void check_writer(void) {
  if (entered != play->segments) return; /* a child that has inherited one of before */
  uint64_t wrong = owners_check(play->actors[me].role, play->segment, role_lives);
  if (wrong == 0) return;
  play->fault_at = (uint32_t)(wrong - 1);
  fail(TWO_WRITERS, me);
}

static void give_turn(uint32_t next) {
  _Atomic uint32_t *go = &play->actors[next].go;
  check_writer();
  play->switches++;
  /* sync turn-R -> turn-A: all that this process has done is visible to the next one. */
  atomic_store_explicit(go, 1, memory_order_release);
  syscall(SYS_futex, go, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static bool can_go_on(const struct actor *actor) {
  return actor->state == RUNS || (actor->state == LOOKS && actor->looked_at != play->activity);
}

/* Let the wait with the next deadline end by it. Returns false if no wait has one. */
static bool pass_time(bool is_quiet) {
  struct actor *next = NULL;
  for (uint32_t i = 0; i < play->actor_count; i++) {
    struct actor *actor = &play->actors[i];
    if (actor->state != PARKS && actor->state != LOOKS) continue;
    if (actor->deadline_ns == INT64_MAX) continue;
    if (next == NULL || actor->deadline_ns < next->deadline_ns) next = actor;
  }
  if (next == NULL) return false;
  if (next->deadline_ns > play->now_ns) play->now_ns = next->deadline_ns;
  next->is_quiet = is_quiet && next->state == PARKS && next->died == play->died;
  next->is_timed_out = 1;
  next->state = RUNS;
  note((uint32_t)(next - play->actors), TIMED_OUT, is_quiet);
  return true;
}

static uint32_t find_those_that_can(uint32_t *found) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < play->actor_count; i++) {
    if (can_go_on(&play->actors[i])) found[count++] = i;
  }
  return count;
}

/* Choose who goes on. */
static uint32_t choose(void) {
  uint32_t found[ACTORS];
  if (draws_one_in(play->fire_one_in)) (void)pass_time(false);
  uint32_t count = find_those_that_can(found);
  while (count == 0) {
    if (!pass_time(true)) fail(BLOCKED, me);
    count = find_those_that_can(found);
  }
  uint32_t next = found[draw() % count];
  if (play->slow >> (next % 32) & 1 && draw() % SLOWED != 0) next = found[draw() % count];
  return next;
}

static void go_on_with(uint32_t next) {
  if (next == me) return;
  give_turn(next);
  wait_for_turn();
}

static void begin_wait(enum actor_state state, int64_t deadline_ns) {
  struct actor *actor = &play->actors[me];
  actor->state = (uint32_t)state;
  actor->deadline_ns = deadline_ns;
  actor->looked_at = play->activity;
  actor->is_timed_out = 0;
  go_on_with(choose());
  actor->state = RUNS;
}

static void end_here(void) {
  play->actors[me].state = ENDS;
  give_turn(choose());
}

static void kill_one(uint32_t victim) {
  note(victim, KILLED, 0);
  play->died++;
  if (victim == me) {
    end_here();
    for (;;) kill(getpid(), SIGKILL);
  }
  kill(pid_of(&play->actors[victim]), SIGKILL);
  bury(&play->actors[victim]);
}

/* Kill one of those that may die, wherever it stands. Returns false if there is none. */
static bool kill_any(void) {
  uint32_t found[ACTORS];
  uint32_t count = 0;
  for (uint32_t i = 0; i < play->actor_count; i++) {
    const struct actor *actor = &play->actors[i];
    bool lives = actor->state == RUNS || actor->state == PARKS || actor->state == LOOKS;
    if (actor->may_die && lives) found[count++] = i;
  }
  if (count > 0) kill_one(found[draw() % count]);
  return count > 0;
}

/* Have processes die if it is time. */
static void strike(void) {
  while (play->struck < play->death_count && play->events >= play->deaths[play->struck]) {
    play->struck++; /* first: this may be the one */
    if (kill_any()) continue;
    play->struck--;
    return;
  }
}

/* Have the process die that passes a step, or another one if this may not. */
static void strike_at(uint32_t number) {
  if (play->death_step != number + 1 || --play->death_passage > 0) return;
  play->death_step = 0;
  if (play->actors[me].may_die) kill_one(me);
  (void)kill_any();
}

/* A place at which others may go on first. */
static void pass(void) {
  strike();
  bool gives = draws_one_in(play->switch_one_in);
  if (play->events < play->switches_from || play->events >= play->switches_to) return;
  if (gives) go_on_with(choose());
}

/* What a process passes */

/* The place of a name among the steps; its address is remembered. */
static uint32_t number_of(const char *name) {
  enum { REMEMBERED = 1024 };
  static const char *names[REMEMBERED];
  static uint32_t numbers[REMEMBERED];
  uint32_t at = (uint32_t)((uintptr_t)name * UINT64_C(0x9E3779B97F4A7C15) >> 54);
  for (uint32_t tries = 0; tries < REMEMBERED; tries++, at = (at + 1) % REMEMBERED) {
    if (names[at] == name) return numbers[at];
    if (names[at] == NULL) break;
  }
  uint32_t number = 0;
  while (number < play->step_count && strcmp(play->steps[number].name, name) != 0) number++;
  names[at] = name;
  numbers[at] = number;
  return number;
}

/*
 * A process whose time came while all others waited looks first: it must find no news.
 * Returns true if it has not looked yet, so that no other process goes on meanwhile.
 */
static bool has_yet_to_look(uint32_t flags) {
  struct actor *actor = &play->actors[me];
  if (!actor->is_quiet || flags & SAYS_NOTHING) return actor->is_quiet;
  actor->is_quiet = 0;
  if (flags & IS_NEWS) fail(UNWOKEN, me);
  return false;
}

/* Let a worker write nonsense and die, when it is time. */
static void forge_once(void) {
  uint32_t role = play->actors[me].role;
  if (play->forge_at == 0 || play->events < play->forge_at || role < FIRST_WORKER) return;
  play->forge_at = 0;
  owners_forge(role - FIRST_WORKER, draw());
  kill_one(me);
}

void door_step(const char *name) {
  uint32_t number = number_of(name);
  uint32_t flags = number < play->step_count ? play->steps[number].flags : 0;
  note(me, STEP_PASSED, number);
  play->now_ns += STEP_NS;
  play->activity++;
  /* Who dies behind the last look before a park may have had news to ring for. */
  if (!(flags & HAS_LOOKED)) play->actors[me].died = play->died;
  if (has_yet_to_look(flags)) return;
  forge_once();
  strike_at(number);
  if (flags & OF_VIEW && !play->has_views) return;
  pass();
}

void door_line(uint32_t number) {
  note(me, LINE, number);
  play->now_ns += STEP_NS;
  play->activity++;
  if (!has_yet_to_look(SAYS_NOTHING)) pass();
}

int door_park(_Atomic uint32_t *word, uint32_t expected, int64_t timeout_ns) {
  note(me, PARKED, 0);
  play->activity++;
  pass(); /* between the last look for news and the park */
  /* relaxed: the turn orders all processes of a run, here and below. */
  if (atomic_load_explicit(word, memory_order_relaxed) != expected) return 0;
  /* relaxed: as above. */
  atomic_store_explicit(word + OWNER, me + 1, memory_order_relaxed);
  begin_wait(PARKS, play->now_ns + (timeout_ns > 0 ? timeout_ns : 0));
  /* relaxed: as above. */
  atomic_store_explicit(word + OWNER, 0, memory_order_relaxed);
  return play->actors[me].is_timed_out ? -ETIMEDOUT : 0;
}

void door_unpark(_Atomic uint32_t *word) {
  /* relaxed: as in door_park. */
  uint32_t owner = atomic_load_explicit(word + OWNER, memory_order_relaxed);
  if (owner == 0 || owner > play->actor_count) return;
  struct actor *actor = &play->actors[owner - 1];
  if (actor->state == PARKS) actor->state = RUNS;
}

void owners_enter(uint8_t *base, const struct geometry *geometry, uint32_t seat) {
  if (!is_open) return;
  bool is_trainer = seat == TRAINERS_SEAT;
  if (is_trainer && me != 0) return; /* a ring of a subscriber's own */
  owners_watch(base, geometry);
  play->actors[me].role = is_trainer ? TRAINER : FIRST_WORKER + seat;
  if (is_trainer) {
    owners_note(play->segment);
    play->segments++;
  }
  entered = play->segments;
}

void owners_leave(const uint8_t *base) {
  if (!is_open || !owners_watches(base)) return;
  check_writer(); /* others, which were forked, may have it mapped still */
  owners_forget();
}

void door_read_out(void *from, size_t bytes) {
  if (!is_open || !play->scribbles) return;
  uint64_t at = owners_offset(from);
  if (at == OWNERS_BYTES) return;
  memset(from, (int)draw(), bytes);
  memcpy(play->segment + at, from, bytes);
}

/* For tests/simulation */

void door_begin(void) {
  me = play->actor_count++;
  play->actors[me].state = RUNS;
  /* relaxed: the other processes are forked after this. */
  atomic_store_explicit(&play->actors[me].pid, (uint32_t)getpid(), memory_order_relaxed);
  play->turn = me;
  is_open = true;
}

void door_close(void) {
  check_writer();
  owners_forget();
  is_open = false;
}

uint32_t door_reserve(bool may_die) {
  uint32_t number = play->actor_count;
  if (number == ACTORS) fail(CROWDED, me);
  play->actor_count++;
  play->actors[number].may_die = may_die;
  play->actors[number].state = RUNS;
  play->activity++;
  note(me, FORKED, number);
  return number;
}

void door_arrive(uint32_t number) {
  me = number;
  is_open = true;
  /* relaxed: the number says all. */
  atomic_store_explicit(&play->actors[me].pid, (uint32_t)getpid(), memory_order_relaxed);
  wait_for_turn();
}

bool door_look(int64_t deadline_ns, bool has_acted) {
  note(me, LOOKED, has_acted);
  if (has_acted) play->activity++;
  strike();
  begin_wait(LOOKS, deadline_ns);
  return play->actors[me].is_timed_out;
}

void door_sleep(int64_t deadline_ns) {
  note(me, SLEPT, 0);
  play->activity++;
  strike();
  begin_wait(PARKS, deadline_ns);
  play->actors[me].is_quiet = 0; /* nothing would have woken it */
}

void door_polls(void) { play->actors[me].is_quiet = 0; }

void door_leave(void) {
  note(me, LEFT, 0);
  play->activity++;
  is_open = false;
  end_here();
}

void door_meet(void) {
  for (uint32_t i = 0; i < play->actor_count; i++) {
    if (play->actors[i].state != DEAD) (void)pid_of(&play->actors[i]);
  }
}

void door_killed(int pid) {
  for (uint32_t i = 0; i < play->actor_count; i++) {
    struct actor *actor = &play->actors[i];
    /* relaxed: as in pid_of. */
    if ((int)atomic_load_explicit(&actor->pid, memory_order_relaxed) != pid) continue;
    if (actor->state == DEAD) continue;
    note(i, KILLED, 1);
    bury(actor);
  }
}

/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The cases in which a guard ends a process, and its messages. Each case runs in a child, on a
 * segment that the child makes for itself; its stderr and its exit status are checked. Late uses by
 * other threads are in tests/memory/test_debug.py.
 */

#include "check.h"
#include "fixture.h"
#include "debug/guard.h"
#include "debug/message.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* How a child ended. */
struct death {
  int status;
  char said[4096];
};

static struct fixture open_guarded(void) {
  struct fixture fixture = fixture_open(1, 4, 4, 100);
  fixture_guard(&fixture);
  return fixture;
}

static _Noreturn void be_child(const int *ends, void (*act)(struct fixture *)) {
  struct rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  dup2(ends[1], STDERR_FILENO);
  close(ends[0]);
  /* A fault that is handled for ever would outlive its parent. */
  alarm(20);
  struct fixture fixture = open_guarded();
  act(&fixture);
  _exit(0);
}

static struct death die(void (*act)(struct fixture *)) {
  struct death death = {.status = -1};
  size_t length = 0;
  int ends[2];
  CHECK_EQUAL(0, pipe(ends));
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) be_child(ends, act);
  close(ends[1]);
  for (ssize_t count = 1; count > 0; length += (size_t)count) {
    count = read(ends[0], death.said + length, sizeof death.said - 1 - length);
  }
  close(ends[0]);
  CHECK_EQUAL(pid, waitpid(pid, &death.status, 0));
  return death;
}

static void check_says(const struct death *death, const char *text) {
  CHECK(strstr(death->said, text) != NULL, "no '%.80s' in '%.120s'", text, death->said);
}

/* It dies, by any signal or status that the sanitizers leave, and says so. */
static void dies_saying(void (*act)(struct fixture *), const char *text) {
  struct death death = die(act);
  CHECK(death.status != 0, "it went on and said '%.120s'", death.said);
  check_says(&death, "shmloader: ");
  check_says(&death, text);
}

/* Keeps a use of memory that nothing depends on. */
static volatile uint8_t sink;

/* A batch that came and went. */
static uint32_t released_slot(struct fixture *fixture, uint64_t ticket) {
  uint32_t slot = come_slot(fixture, ticket);
  lease_drop(ledger_lease(fixture->ledger, slot, 1));
  return slot;
}

static void read_late(struct fixture *fixture) {
  released_slot(fixture, 16);
  sink = trainer_slot(fixture, released_slot(fixture, 17))[640];
}
TEST(late_use_is_named) {
  dies_saying(read_late, "slot 1 was used after its release, at byte 640 of the batch of ticket "
                         "17, the last one there, which was released 0.");
}

/* Slot 0 has gone round once more: its batch has come, and is not delivered yet. */
static void read_again(struct fixture *fixture) {
  for (uint64_t ticket = 0; ticket < 4; ticket++) {
    released_slot(fixture, ticket);
    ledger_collect(fixture->ledger);
  }
  CHECK_EQUAL(0, come_slot(fixture, 4));
  sink = trainer_slot(fixture, 0)[1];
}
TEST(late_use_is_named_whoever_has_the_slot_now) {
  dies_saying(read_again, "slot 0 was used after its release, at byte 1 of the batch of ticket 0");
}

static void read_unused(struct fixture *fixture) { sink = trainer_slot(fixture, 3)[5]; }
static void read_beyond(struct fixture *fixture) {
  uint32_t slot = come_slot(fixture, 19);
  ledger_lease(fixture->ledger, slot, 1);
  sink = trainer_slot(fixture, slot)[GUARDED_PAYLOAD];
  sink = trainer_slot(fixture, slot)[pages(1)];
}
static void read_beyond_late(struct fixture *fixture) {
  sink = trainer_slot(fixture, released_slot(fixture, 17))[GUARDED_PAYLOAD + 9];
}
TEST(use_of_what_was_never_there) {
  char text[100];
  dies_saying(read_unused, "slot 3, which holds no batch so far, was used at byte 5");
  snprintf(text, sizeof text, "slot 0 was used at byte %" PRIu64 ", beyond the 1000 bytes of the "
                              "batch of ticket 19, which is there now", pages(1));
  dies_saying(read_beyond, text);
  dies_saying(read_beyond_late, "at byte 1009, beyond the end of the batch of ticket 17");
}

static void say_and_end(int signal_number) {
  static const char text[] = "an earlier handler\n";
  ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
  _exit(signal_number == SIGSEGV && written > 0 ? 42 : 43);
}
static void fault_elsewhere(struct fixture *fixture) {
  fixture_close_desks(fixture);
  sink = fixture->base[0];
}
static void raise_fault(struct fixture *fixture) {
  (void)fixture;
  raise(SIGSEGV);
}
/* The sender of a signal may write anything into it. */
static void send_an_address(struct fixture *fixture) {
  siginfo_t info = {.si_code = SI_QUEUE};
  info.si_addr = trainer_slot(fixture, 0);
  CHECK_EQUAL(0, syscall(SYS_rt_sigqueueinfo, getpid(), SIGSEGV, &info));
}
/* A batch that is open here, closed by other code. */
static void close_by_others(struct fixture *fixture) {
  uint8_t *start = trainer_slot(fixture, come_slot(fixture, 0));
  ledger_lease(fixture->ledger, 0, 1);
  CHECK_EQUAL(0, mprotect(start, pages(1), PROT_NONE));
  sink = start[0];
}
/* A slot of a segment that is gone. */
static void read_after_the_end(struct fixture *fixture) {
  const uint8_t *start = trainer_slot(fixture, released_slot(fixture, 17));
  ledger_collect(fixture->ledger);
  fixture_close(fixture);
  sink = start[0];
}
/* A child has the handler before it has a guard. */
TEST(earlier_handler_is_next) {
  void (*before)(int) = signal(SIGSEGV, say_and_end);
  struct death death = die(read_late);
  CHECK(WIFEXITED(death.status) && WEXITSTATUS(death.status) == 42);
  check_says(&death, "at byte 640 of the batch of ticket 17");
  check_says(&death, "an earlier handler");
  CHECK(strstr(death.said, "shmloader: ") < strstr(death.said, "an earlier handler"));
  void (*const none_of_ours[])(struct fixture *) = {
      fault_elsewhere, raise_fault, send_an_address, close_by_others, read_after_the_end};
  for (size_t i = 0; i < LENGTH(none_of_ours); i++) {
    death = die(none_of_ours[i]);
    CHECK(WIFEXITED(death.status) && WEXITSTATUS(death.status) == 42);
    CHECK(strcmp(death.said, "an earlier handler\n") == 0, "'%.120s'", death.said);
  }
  signal(SIGSEGV, before);
}

/* It says its part and restores the handler before it, here ours. */
static struct sigaction under_the_later;
static void say_and_put_back(int signal_number) {
  static const char text[] = "a later handler\n";
  ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
  sigaction(signal_number, &under_the_later, NULL);
  if (written <= 0) _exit(43);
}
static void read_under_a_later_handler(struct fixture *fixture) {
  struct sigaction later = {.sa_handler = say_and_put_back};
  sigaction(SIGSEGV, &later, &under_the_later);
  read_late(fixture);
}
TEST(later_handler_is_first) {
  struct death death = die(read_under_a_later_handler);
  CHECK(death.status != 0);
  CHECK(strncmp(death.said, "a later handler\nshmloader: ", 27) == 0, "'%.200s'", death.said);
}

/* Batches that are whole when they come, and damaged when they go. */
static void spoil(struct fixture *fixture, uint32_t slot, uint64_t at) {
  worker_slot(fixture, slot)[at] ^= 1;
}
static void spoil_canary(struct fixture *fixture) {
  uint32_t slot = come_slot(fixture, 20);
  struct lease *lease = ledger_lease(fixture->ledger, slot, 1);
  spoil(fixture, slot, GUARDED_PAYLOAD + GUARDED_LAYOUT + 63);
  lease_drop(lease);
}
static void spoil_ready(struct fixture *fixture) {
  uint32_t slot = come_slot(fixture, 20);
  spoil(fixture, slot, GUARDED_PAYLOAD + GUARDED_LAYOUT);
  ledger_free(fixture->ledger, slot);
}
static void spoil_nothing(struct fixture *fixture) {
  uint32_t slot = come_slot(fixture, 20);
  struct lease *lease = ledger_lease(fixture->ledger, slot, 1);
  spoil(fixture, slot, GUARDED_PAYLOAD - 1);
  spoil(fixture, slot, GUARDED_PAYLOAD + GUARDED_LAYOUT + 64);
  drop_and_collect(fixture, lease);
}
TEST(write_beyond_a_batch_is_named) {
  const char *text = "something was written beyond the 1000 bytes of the batch of ticket 20 in "
                     "slot 0, after it came from worker 0 and before it was released";
  dies_saying(spoil_canary, text);
  dies_saying(spoil_ready, text);
  struct death death = die(spoil_nothing);
  CHECK_EQUAL(0, death.status);
  CHECK(death.said[0] == 0, "'%.120s'", death.said);
}

/* A ledger that other code wrote into after a batch came, or was sent: the next move says so. */
#define SPOILED(name, batch, damage, move)                        \
  static void name(struct fixture *fixture) {                     \
    struct ledger *ledger = fixture->ledger;                      \
    uint32_t slot = batch(fixture, 21);                           \
    struct ledger_entry *entry = &ledger->entries[slot];          \
    struct ledger_entry *other = &ledger->entries[2];             \
    (void)entry, (void)other;                                     \
    damage;                                                       \
    move;                                                         \
  }
SPOILED(spoil_committed, come_slot, ledger->committed_bytes += 8, ledger_lease(ledger, slot, 1))
SPOILED(spoil_kept, come_slot, ledger->kept_bytes = 1, ledger_free(ledger, slot))
SPOILED(spoil_counts, come_slot, ledger->counts[SLOT_FORKED]++, sent_slot(fixture, 22))
SPOILED(spoil_wanting, sent_slot, ledger->wanting++, receive(fixture, 0, VERB_READY, slot))
SPOILED(spoil_grant, sent_slot, entry->grant_bytes = 0, ledger_grant(ledger, slot, pages(2)))
SPOILED(spoil_stack, come_slot, ledger->free_slots[0] = slot, ledger_free(ledger, slot))
SPOILED(spoil_stack_twice, come_slot, ledger->free_slots[0] = ledger->free_slots[1],
        ledger_free(ledger, slot))
SPOILED(spoil_free_count, come_slot, ledger->free_count--, ledger_free(ledger, slot))
SPOILED(spoil_state, come_slot, entry->state = 99; ledger_reclaim(ledger, 0), place(fixture, 0, 22))
SPOILED(spoil_forks, come_slot, other->children = 1, ledger_free(ledger, slot))
SPOILED(spoil_pages, come_slot, other->pages_bytes = fixture->geometry.range_bytes + 1,
        ledger_free(ledger, slot))
SPOILED(spoil_want, come_slot, entry->want_bytes = 1, ledger_free(ledger, slot))
TEST(wrong_ledger_is_found) {
  dies_saying(spoil_committed, "committed_bytes is ");
  dies_saying(spoil_kept, "kept_bytes is 1 and was recounted as 0");
  dies_saying(spoil_counts, "the count of a state is 1 and was recounted as 0");
  dies_saying(spoil_wanting, "wanting is 1 and was recounted as 0");
  dies_saying(spoil_grant, "slot 0, with more pages than its grant");
  dies_saying(spoil_stack, "slot 0, listed as free");
  dies_saying(spoil_stack_twice, "listed as free twice");
  dies_saying(spoil_free_count, "the number of free slots is 2 and was recounted as 3");
  dies_saying(spoil_state, "slot 0, in no known state");
  dies_saying(spoil_pages, "slot 2, with more pages than its range has");
  dies_saying(spoil_want, "slot 0, which wants pages unplaced");
  dies_saying(spoil_forks, "slot 2, which children may read unleased");
}

/* Text that does not fit is cut off, and the newline still fits. */
static void say_much(struct fixture *fixture) {
  (void)fixture;
  char text[2 * MESSAGE_BYTES] = {0};
  memset(text, '9', sizeof text - 1);
  message_say("%s", text);
  message_say("0");
}
TEST(line_is_cut_off) {
  struct death death = die(say_much);
  CHECK_EQUAL('\n', death.said[MESSAGE_BYTES - 1]);
  CHECK(strcmp(death.said + MESSAGE_BYTES, "shmloader: 0\n") == 0, "'%.99s'", death.said);
}

/* Use up the kernel's table of mappings: every second page is another one. */
static void fill_map_table(void) {
  const size_t count = 1 << 18;
  uint8_t *start = mmap(NULL, count * pages(1), PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(start != MAP_FAILED);
  for (size_t i = 0; i < count; i += 2) {
    if (mprotect(start + i * pages(1), pages(1), PROT_READ) != 0) return;
  }
  CHECK(false, "the table has no end");
}
static void lease_without_maps(struct fixture *fixture) {
  uint32_t first = come_slot(fixture, 0), second = come_slot(fixture, 1);
  fill_map_table();
  ledger_lease(fixture->ledger, first, 1);
  ledger_lease(fixture->ledger, second, 1);
}
TEST(full_map_table_is_said) {
  dies_saying(lease_without_maps, "raise vm.max_map_count or lower slots");
}

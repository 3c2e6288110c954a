/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The trainer's moves among workers, honest ones and such as write anything: the plays of
 * fuzz_ledger.c without a fuzzer. Steps are random here, or from the inputs that fuzzing has kept.
 */

#include "check.h"
#include "play.h"

#include <dirent.h>

enum { PLAYS_LEAST = 100 }; /* on a machine that is busy with other things, too */

TEST(random_plays_end_well) {
  static struct play play;
  uint64_t random = random_start(1), plays = 0;
  struct limit limit = limit_of(0.5, 100000);
  for (; plays < PLAYS_LEAST || limit_allows(&limit); plays++) {
    play = (struct play){.input = {.random = &random}};
    play_through(&play, plays % 2 == 1);
  }
  printf("%" PRIu64 " plays\n", plays);
}

static void play_file(const char *name) {
  static struct play play;
  static uint8_t data[1 << 16];
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", check_inputs, name);
  FILE *file = fopen(path, "rb");
  CHECK(file != NULL, "%s", path);
  /* Before it runs: the last line names the input that ended the program. */
  printf("%s\n", name);
  fflush(stdout);
  play = (struct play){.input = {.next = data, .left = fread(data, 1, sizeof data, file)}};
  fclose(file);
  play_through(&play, true);
}

TEST(kept_plays_end_well) {
  if (check_inputs == NULL) return;
  DIR *folder = opendir(check_inputs);
  CHECK(folder != NULL, "%s", check_inputs);
  for (const struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
    if (entry->d_name[0] != '.') play_file(entry->d_name);
  }
  closedir(folder);
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* Runs the inputs that are named to it, once each, without a fuzzer. */

#include <stdint.h>
#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static int run(const char *path) {
  static uint8_t data[1 << 16];
  FILE *file = fopen(path, "rb");
  if (file == NULL) return 1;
  size_t bytes = fread(data, 1, sizeof data, file);
  int error = ferror(file);
  fclose(file);
  if (error) return 1;
  /* Before it runs: the last line names the input that ended the program. */
  printf("%s\n", path);
  fflush(stdout);
  return LLVMFuzzerTestOneInput(data, bytes);
}

int main(int count, char **paths) {
  for (int i = 1; i < count; i++) {
    if (run(paths[i]) != 0) {
      fprintf(stderr, "cannot read %s\n", paths[i]);
      return 2;
    }
  }
  return 0;
}

/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The decoder among layouts, or records, of any bytes: an interpreter inside the fuzzer, which
 * imports the extension as it was built for coverage and hands each input to Reader.run of MODULE,
 * layouts.py or records.py. An uncaught exception is a failure, as is anything that
 * AddressSanitizer finds.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdlib.h>

int LLVMFuzzerInitialize(int *count, char ***arguments);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t most, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t bytes, size_t most); /* the fuzzer's own */

static PyObject *run;

static void fail(void) {
  PyErr_Print();
  abort();
}

static void start_python(void) {
  PyConfig config;
  PyConfig_InitPythonConfig(&config);
  config.install_signal_handlers = 0; /* the fuzzer has its own */
  PyStatus status = PyConfig_SetBytesString(&config, &config.executable, PYTHON);
  if (!PyStatus_Exception(status)) status = Py_InitializeFromConfig(&config);
  if (PyStatus_Exception(status)) Py_ExitStatusException(status);
  PyConfig_Clear(&config);
}

int LLVMFuzzerInitialize(int *count, char ***arguments) {
  (void)count, (void)arguments;
  start_python();
  PyObject *module = PyImport_ImportModule(MODULE);
  PyObject *reader = module == NULL ? NULL : PyObject_CallMethod(module, "Reader", NULL);
  run = reader == NULL ? NULL : PyObject_GetAttrString(reader, "run");
  if (run == NULL) fail();
  return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  PyObject *outcome = PyObject_CallFunction(run, "y#", data, (Py_ssize_t)bytes);
  if (outcome == NULL) fail();
  Py_DECREF(outcome);
  return 0;
}

/* A power of two or its negative, or close to it: half of them so large that sums overflow. */
static int64_t edge(uint64_t random) {
  uint64_t power = UINT64_C(1) << (random & 1 ? 60 + (random >> 1) % 4 : (random >> 1) % 64);
  uint64_t near = random >> 7 & 1 ? (random >> 8) % 5 - 2 : 0;
  return (int64_t)((random >> 16 & 3 ? power : 0 - power) + near);
}

/* From a place on, the next eight bytes that read as a small number: a size, stride or offset. */
static size_t find_number(const uint8_t *data, size_t bytes, size_t start) {
  static const uint8_t high[6];
  for (size_t i = start; i + 8 <= bytes; i++) {
    if (data[i] != 0 && memcmp(data + i + 2, high, sizeof high) == 0) return i;
  }
  return start;
}

/* Layouts are full of 64-bit numbers: one change in four puts one at an edge in another's place. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t most, unsigned seed) {
  uint64_t random = seed * UINT64_C(0x9e3779b97f4a7c15);
  random = (random ^ random >> 32) * UINT64_C(0xd6e8feb86659fd93);
  int64_t value = edge(random >> 32);
  if (seed % 4 != 0 || bytes < sizeof value) return LLVMFuzzerMutate(data, bytes, most);
  size_t start = random % (bytes - sizeof value + 1);
  memcpy(data + find_number(data, bytes, start), &value, sizeof value);
  return bytes;
}

#ifndef SHMLOADER_TESTS_STANDIN_DRIVER_H
#define SHMLOADER_TESTS_STANDIN_DRIVER_H

#include <stddef.h>
#include <stdint.h>

/* What a test tells a driver of CUDA that is none, and asks it: see standin_driver.c. */
extern int standin_capturing, standin_is_late, standin_never, standin_refuses;
extern int standin_query_fails, standin_record_fails, standin_is_active;
extern int standin_spoilt, standin_registered, standin_ever_registered, standin_records;
extern int standin_events, standin_faults;

void standin_begin(void);
void standin_copy(char *to, const char *from, size_t bytes);
void standin_finish(int64_t most);
int64_t standin_waiting(void);
int standin_holds(const char *start, size_t bytes);
void standin_reset(void);

#endif

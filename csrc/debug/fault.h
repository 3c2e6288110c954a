/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_FAULT_H
#define SHMLOADER_FAULT_H

#include "guard.h"

/*
 * From now on, explain each fault in this guard's segment: which slot was used at the wrong time.
 * One thread at a time. With hundreds of segments the last ones are not watched.
 */
void fault_watch(struct guard *guard);

/* Stop that; afterwards the guard may be freed. Any thread, wait-free. */
void fault_forget(struct guard *guard);

#endif

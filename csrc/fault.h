/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_FAULT_H
#define SHMLOADER_FAULT_H

#include "guard.h"

/*
 * From now on say, when an access faults in this guard's segment, what was used when it should not
 * have been. One thread at a time. False: too many segments are watched; such faults go unexplained.
 */
bool fault_watch(struct guard *guard);

/* Stop that; afterwards the guard may be freed. Any thread, wait-free. */
void fault_forget(struct guard *guard);

#endif

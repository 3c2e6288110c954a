/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_AUDIT_H
#define SHMLOADER_AUDIT_H

#include "guard.h"

/*
 * End the process if a guarded ledger contradicts itself. The message names when and move, such as
 * "after" and "placing", and the slot. Trainer only.
 */
PLATFORM_COLD void audit_ledger(const struct ledger *ledger, const char *when, const char *move,
                                uint32_t slot);

#endif

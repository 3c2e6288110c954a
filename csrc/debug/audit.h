/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_AUDIT_H
#define SHMLOADER_AUDIT_H

#include "ledger.h"

/*
 * End the process if a guarded ledger contradicts itself. The message says which move of which slot
 * is about to begin, such as "placing". Trainer only.
 */
PLATFORM_COLD void audit_ledger(const struct ledger *ledger, const char *move, uint32_t slot);

#endif
